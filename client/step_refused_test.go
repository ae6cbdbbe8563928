package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/step"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// refusedStep is a call that idemd further on refuses.
func refusedStep(ctx context.Context, opts ...grpc.CallOption) error {
	return asked(ctx, nil, answering(storepb.ToStatus(store.Refuse(store.ErrKeyExpired, "it is too old")).Err()), opts...)
}

// A consumer has the message again, and does not bury what nobody knows of.
func TestStepRefusedOfMessage(t *testing.T) {
	s := newStore(t)
	c, err := client.NewConsumer(t.Context(), s, client.Queue{Namespace: "default", Scope: "pay", MaxAge: time.Hour},
		func(ctx context.Context, a *client.Attempt, m client.Message) error {
			if err := refusedStep(ctx, client.StepKey(ctx, "charge")); status.Code(err) == codes.FailedPrecondition {
				return status.Error(codes.FailedPrecondition, "declined")
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	m := client.Message{ID: "1", Source: "orders", Time: time.Now()}
	d := c.Consume(t.Context(), []client.Message{m})[0]
	if d.Action != client.Retry {
		t.Errorf("after a refused step the message is %v (%v), want a retry", d.Action, d.Err)
	}
}

// What a step of a step came to nobody knows either.
func TestStepRefusedFurtherIn(t *testing.T) {
	s := newStore(t)
	pay := store.Key{}
	_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
		pay = store.Key{Namespace: "default", Scope: "pay", ID: a.DownstreamKey("pay")}
		_, err := client.Do(ctx, s, pay, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
			if err := refusedStep(ctx, client.StepKey(ctx, "charge")); status.Code(err) == codes.FailedPrecondition {
				return "", status.Error(codes.FailedPrecondition, "declined")
			}
			return "", nil
		})
		return "", err
	})
	in, out := s.inspect(t, pay).Record.State, s.inspect(t, orderKey).Record.State
	if out == store.StateCompleted {
		t.Errorf("%v: the step is %v, and the intent is %v", err, in, out)
	}
}

// The key of a step is the step's, whichever way it is given to a call.
func TestStepRefusedByKey(t *testing.T) {
	s := newStore(t)
	_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
		if err := refusedStep(ctx, client.Key(a.DownstreamKey("charge"))); status.Code(err) == codes.FailedPrecondition {
			return "", status.Error(codes.FailedPrecondition, "declined")
		}
		return "", nil
	})
	if out := s.inspect(t, orderKey).Record.State; out == store.StateCompleted {
		t.Errorf("%v: Key(DownstreamKey): the intent is %v", err, out)
	}
}

// What is refused first and answered then is answered.
func TestStepRefusedThenAnswered(t *testing.T) {
	s := newStore(t)
	_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
		_ = refusedStep(ctx, client.StepKey(ctx, "charge"))
		err := asked(ctx, nil,
			answering(declined, client.MetadataEnd, step.Mark(step.Completed, int(codes.FailedPrecondition), a.DownstreamKey("charge"))), client.StepKey(ctx, "charge"))
		return "", err
	})
	if out := s.inspect(t, orderKey).Record.State; out != store.StateCompleted {
		t.Errorf("the step answered declined after a refusal, and the intent is %v", out)
	}
}

// A guarded service says that a failure of its is not final, so that whoever has called it knows.
func TestStepRefusedThreeHopsOn(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			if err := refusedStep(ctx, client.StepKey(ctx, "charge")); err != nil {
				return nil, status.Error(codes.FailedPrecondition, "declined")
			}
			return &testv1.ChargeResponse{}, nil
		})
		s := newStore(t)
		var id string
		_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
			id = a.DownstreamKey("pay")
			err := asked(ctx, r.conn, onTheWire, client.StepKey(ctx, "pay"))
			return "", err
		})
		b := r.recordOf(chargeMethod, id, "")
		if out := s.inspect(t, orderKey).Record.State; out == store.StateCompleted {
			t.Errorf("%v: B's key is %v, A's is final: %v", err, b.State, out)
		}
	})
}

// A code that a policy lists says nothing of a step that was refused: released as if nothing had happened, the
// intent would be new, and the step be taken again.
func TestStepRefusedBeforeANoEffectCode(t *testing.T) {
	for _, busy := range []codes.Code{codes.Aborted, codes.ResourceExhausted} { // a no-effect code; any other
		guarded(t, func(t *testing.T, r *rig) {
			steps, charges := newStore(t), 0
			short(t, steps)
			var step store.Key
			r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
				a, _ := client.AttemptFrom(ctx)
				step = store.Key{Namespace: "short", Scope: "charge", ID: a.DownstreamKey("charge")}
				take := func() error {
					_, err := client.Do(ctx, steps, step, nil, func(context.Context, *client.Attempt) (string, error) {
						charges++
						return "ok", nil
					})
					return err
				}
				if charges == 0 { // taken; the answer was lost, and the step is asked for again while idemd further on is away
					_ = take()
					a.StepUnknown(step.ID) // STORE_UNAVAILABLE, as the interceptor says it
					return nil, status.Error(busy, "busy")
				}
				if err := take(); err != nil {
					return nil, err
				}
				return &testv1.ChargeResponse{}, nil
			})
			r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1)
			time.Sleep(3 * time.Hour)
			r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1)
			if charges > 1 {
				t.Errorf("%v: %d charges", busy, charges)
			}
		}, client.Method(chargeMethod, client.Policy{NoEffect: []codes.Code{codes.ResourceExhausted}}))
	}
}

// supersededStore is a store whose attempts are taken over before they end.
type supersededStore struct{ store.Store }

func (s supersededStore) Complete(context.Context, store.CompleteRequest) (store.CompleteAnswer, error) {
	return store.CompleteAnswer{}, store.Refuse(store.ErrStaleFence, "taken over")
}

// A Do that is a step may be refused after its claim too: by what it found out of an earlier attempt, or by an attempt
// that has taken over.
func TestStepRefusedAfterItsClaim(t *testing.T) {
	t.Run("ProviderKeys", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			var got error
			charges := 0
			run := func() {
				_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
					step := store.Key{Namespace: "default", Scope: "charge", ID: a.DownstreamKey("charge")}
					_, got = client.Do(ctx, s, step, nil, func(context.Context, *client.Attempt) (string, error) {
						charges++
						return "", errors.New("connection reset")
					}, client.ProviderKeys(time.Hour))
					if errors.Is(got, store.ErrKeyUnresolved) {
						return "", declined
					}
					return "", got
				}, client.Recover(func(context.Context, *client.Attempt) (string, bool, error) { return "", false, nil }))
			}
			run()
			time.Sleep(2 * time.Hour)
			run()
			if out := s.inspect(t, orderKey).Record.State; out == store.StateCompleted {
				t.Errorf("%d charge(s) sent, step: %v; the intent is final: %v", charges, got, out)
			}
		})
	})
	t.Run("superseded", func(t *testing.T) {
		s := newStore(t)
		var got error
		charges := 0
		_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
			step := store.Key{Namespace: "default", Scope: "charge", ID: a.DownstreamKey("charge")}
			_, got = client.Do(ctx, supersededStore{s}, step, nil, func(context.Context, *client.Attempt) (string, error) { charges++; return "ok", nil })
			if errors.Is(got, store.ErrStaleFence) {
				return "", declined
			}
			return "", nil
		})
		if out := s.inspect(t, orderKey).Record.State; out == store.StateCompleted {
			t.Errorf("%d charge(s) sent, step: %v; the intent is final: %v", charges, got, out)
		}
	})
}

// A guard of any protocol records no failure after a step that was refused.
func TestStepRefusedInAGate(t *testing.T) {
	for _, refused := range []bool{true, false} {
		s := newStore(t)
		failure, err := proto.Marshal(status.New(codes.FailedPrecondition, "declined").Proto())
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.NewGate(s, nil, false).Pass(t.Context(), client.Entry{Claim: store.ClaimRequest{Key: orderKey}}, func(ctx context.Context) client.Ending {
			a, _ := client.AttemptFrom(ctx)
			if a.StepUnknown(a.DownstreamKey("charge")); !refused {
				a.StepAnswered(a.DownstreamKey("charge"))
			}
			return client.Ending{Outcome: &store.Outcome{Status: failure}}
		})
		if got := s.inspect(t, orderKey).Record.State; err != nil || (got == store.StateCompleted) == refused {
			t.Errorf("refused %v: %v, the record is %v", refused, err, got)
		}
	}
}
