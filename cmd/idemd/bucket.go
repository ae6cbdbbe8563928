package main

import (
	"context"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// bucketCmd is about the time slices of the key store.
type bucketCmd struct {
	List bucketListCmd `cmd:"" help:"List the buckets that exist."`
}

type bucketListCmd struct {
	remoteFlags
}

// Run is called by kong.
func (c *bucketListCmd) Run(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).ListBuckets(ctx, &idemdv1.ListBucketsRequest{})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			p.line("TIER\tSTART\tEND\tDROPPED AFTER")
			for _, b := range resp.GetBuckets() {
				p.line("%s\t%s\t%s\t%s", storepb.Word(b.GetTier(), "TIER_"),
					formatTime(b.GetStart()), formatTime(b.GetEnd()), formatTime(b.GetDropAfter()))
			}
		})
	})
}
