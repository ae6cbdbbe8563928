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
	return c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		fence, err := c.fence(ctx, conn, c.key())
		if err != nil {
			return err
		}
		effect := idemdv1.Effect_value["EFFECT_"+strings.ToUpper(c.Effect)]
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).Release(ctx, &idemdv1.ReleaseRequest{
			Key: c.key(), AttemptId: c.Attempt.opaque, Fence: fence, Effect: idemdv1.Effect(effect),
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			switch {
			case resp.GetState() == idemdv1.State_STATE_RELEASED:
				p.heading("released: the key may be claimed afresh")
			case c.Effect == "none":
				p.heading("lapsed: this attempt did nothing, but an earlier one may have acted; that is still unknown, and the next claimer is told so")
			default:
				p.heading("lapsed: what happened is unknown, and the next claimer is told so")
			}
		})
	})
}
