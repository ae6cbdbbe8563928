package main

import (
	"context"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// lookupCmd shows where a key stands.
type lookupCmd struct {
	remoteFlags
	keyFlags
	fingerprintFlags
}

// Run is called by kong.
func (c *lookupCmd) Run(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).Lookup(ctx, &idemdv1.LookupRequest{
			Key: c.key(), Fingerprint: c.proto(),
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { lookupText(p, resp) })
	})
}

func lookupText(p *page, resp *idemdv1.LookupResponse) {
	p.heading("%s", stateText(resp.GetState(), resp.GetLapsed()))
	if resp.GetOutcome() != nil {
		p.outcome(resp.GetOutcome())
	}
	if resp.GetOutcomeWithheld() {
		p.field("outcome", "withheld: the fingerprint is not that of the key's request")
	}
	if resp.GetUnsettled() {
		p.field("unsettled", "an attempt may have acted")
	}
	p.field("fence", resp.GetFence())
	p.field("attempt number", resp.GetAttemptNumber())
	p.field("lapse policy", storepb.Word(resp.GetLapsePolicy(), "LAPSE_POLICY_"))
	p.when("granted at", resp.GetGrantedAt())
	if resp.GetState() == idemdv1.State_STATE_IN_PROGRESS {
		p.when("lease end", resp.GetLeaseExpiresAt())
	}
	p.when("ended at", resp.GetEndedAt())
	p.when("kept until", resp.GetExpiresAt())
}
