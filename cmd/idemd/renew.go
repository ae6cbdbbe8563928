package main

import (
	"context"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// renewCmd extends a lease.
type renewCmd struct {
	remoteFlags
	keyFlags
	attemptFlags
	Lease span `help:"How long the right to act should last from now, 1s to 15m (the namespace's, 30s by default)."`
}

// Run is called by kong.
func (c *renewCmd) Run(s *session) error {
	return c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		fence, err := c.fence(ctx, conn, c.key())
		if err != nil {
			return err
		}
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).Renew(ctx, &idemdv1.RenewRequest{
			Key: c.key(), AttemptId: c.Attempt.opaque, Fence: fence, Lease: durationProto(c.Lease),
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			p.heading("renewed: go on")
			p.until("lease ends", resp.GetLeaseExpiresAt(), resp.GetLeaseRemaining())
		})
	})
}
