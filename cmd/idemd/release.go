package main

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// releaseCmd gives a key up.
type releaseCmd struct {
	remoteFlags
	keyFlags
	attemptFlags
	Effect string `required:"" enum:"none,unknown" help:"none: nothing happened. unknown: it may have happened."`
}

// Run is called by kong.
func (c *releaseCmd) Run(s *session) error {
	return c.call(s, 0, func(ctx context.Context, conn *grpc.ClientConn) error {
		fence, err := c.fence(ctx, conn, c.key())
		if err != nil {
			return err
		}
		effect := idemdv1.Effect_value["EFFECT_"+strings.ToUpper(c.Effect)]
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).Release(ctx, &idemdv1.ReleaseRequest{
			Key: c.key(), AttemptId: c.Attempt, Fence: fence, Effect: idemdv1.Effect(effect),
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			if resp.GetState() == idemdv1.State_STATE_RELEASED {
				p.heading("released: the key may be claimed afresh")
			} else {
				p.heading("lapsed: what happened is unknown, and the next claimer is told so")
			}
		})
	})
}
