package main

import (
	"context"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// completeCmd stores what an attempt ended with.
type completeCmd struct {
	remoteFlags
	keyFlags
	attemptFlags
	outcomeFlags
}

// Run is called by kong.
func (c *completeCmd) Run(s *session) error {
	if !c.given() {
		return usageError("say what happened: --outcome or --code (--outcome '' if there is nothing to say)")
	}
	outcome, err := c.proto(s.stdin)
	if err != nil {
		return err
	}
	return c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		fence, err := c.fence(ctx, conn, c.key())
		if err != nil {
			return err
		}
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).Complete(ctx, &idemdv1.CompleteRequest{
			Key: c.key(), AttemptId: c.Attempt.opaque, Fence: fence, Outcome: outcome,
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			p.heading("completed: every repeat is told this outcome")
			p.outcome(outcome)
			p.when("completed at", resp.GetCompletedAt())
			p.when("kept until", resp.GetExpiresAt())
		})
	})
}
