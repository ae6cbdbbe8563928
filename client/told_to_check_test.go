package client_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// Whoever was told to check and knows that nothing was done before is believed in what it says of its own attempt.
func TestAttemptNothingFound(t *testing.T) {
	for looked, want := range map[bool]store.State{true: store.StateCompleted, false: store.StateInProgress} {
		answer := func(a *client.Attempt) error {
			switch {
			case a.Number == 1:
				return errors.New("connection reset")
			case looked:
				a.NothingFound()
			}
			return declined
		}
		s := newStore(t)
		for range 2 {
			isFinal(t, s, func(_ context.Context, a *client.Attempt) error { return answer(a) })
		}
		if got := s.inspect(t, orderKey).Record.State; got != want {
			t.Errorf("looked %v: after Do the record is %v, want %v", looked, got, want)
		}
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
				a, _ := client.AttemptFrom(ctx)
				return nil, answer(a)
			})
			for range 2 {
				r.once()
			}
			r.state(want)
		})
	}
}

// A gateway is told to check, and does nothing but a step: what the guard further on has stored is final at once, what
// somebody else says is not.
func TestOnlySteps(t *testing.T) {
	for _, vouched := range []bool{true, false} {
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return nil, declined })
			s, lost := newStore(t), true
			way := func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
				err := onTheWire(ctx, m, req, reply, cc, opts...)
				switch {
				case lost:
					return status.Error(codes.Unavailable, "connection reset")
				case !vouched:
					return answering(status.Error(codes.NotFound, "no such route"))(ctx, m, req, reply, cc, opts...)
				}
				return err
			}
			gateway := func(ctx context.Context, a *client.Attempt) error {
				a.OnlySteps("pay")
				return errors.Join(asked(ctx, r.conn, way, client.StepKey(ctx, "pay")), nil)
			}
			if isFinal(t, s, gateway) {
				t.Error("final without an answer")
			}
			lost = false
			if got := isFinal(t, s, func(ctx context.Context, a *client.Attempt) error { _ = gateway(ctx, a); return declined }); got != vouched {
				t.Errorf("vouched for %v: final %v", vouched, got)
			}
			r.ran(1)
		})
	}
}

// A gateway knows nothing of a step that an earlier attempt alone has asked for.
func TestOnlyStepsThatWereAsked(t *testing.T) {
	s, attempts := newStore(t), 0
	gateway := func(ctx context.Context, a *client.Attempt) error {
		a.OnlySteps("reserve", "charge")
		_ = asked(ctx, nil, answering(nil), client.StepKey(ctx, "reserve"))
		if attempts++; attempts == 1 {
			_ = asked(ctx, nil, answering(status.Error(codes.Unavailable, "connection reset")), client.StepKey(ctx, "charge"))
		}
		return declined
	}
	for range 2 {
		if isFinal(t, s, gateway) {
			t.Errorf("final after %d attempts, though nobody knows of the charge", attempts)
		}
	}
}
