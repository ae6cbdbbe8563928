package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/step"
	keys "github.com/idemd/idemd/client/key"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

var declined = status.Error(codes.FailedPrecondition, "declined")

// answering is an invoker that is answered with an error and trailers: names, each with its value.
func answering(err error, trailers ...string) grpc.UnaryInvoker {
	return func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		for _, opt := range opts {
			if into, ok := opt.(grpc.TrailerCallOption); ok {
				*into.TrailerAddr = metadata.Pairs(trailers...)
			}
		}
		return err
	}
}

// onTheWire sends a call.
func onTheWire(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return cc.Invoke(ctx, m, req, reply, opts...)
}

// asked makes a call of method Charge.
func asked(ctx context.Context, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return client.UnaryClientInterceptor()(ctx, chargeMethod, &testv1.ChargeRequest{Account: "a"}, &testv1.ChargeResponse{}, conn, invoker, opts...)
}

// isFinal reports whether the intent orderKey is recorded as final after an attempt that carries it out with fn.
func isFinal(t *testing.T, s *faultyStore, fn func(ctx context.Context, a *client.Attempt) error) bool {
	t.Helper()
	_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) { return "", fn(ctx, a) })
	return s.inspect(t, orderKey).Record.State == store.StateCompleted
}

// What an answer says of a step: a handler that answers "declined" after it is final or not.
func TestWhatAnAnswerSaysOfAStep(t *testing.T) {
	status := status.Error
	charge := keys.Downstream(orderKey, "charge")
	ended := func(did string, code codes.Code, key string) []string {
		return []string{client.MetadataGuarded, "true", client.MetadataEnd, step.Mark(did, int(code), key)}
	}
	for _, test := range []struct {
		name    string
		err     error
		marks   []string
		answers bool // nothing was known before
		settles bool // that nothing was known before
	}{
		{"success", nil, nil, true, true},
		{"a guard's answer", status(codes.FailedPrecondition, "no"), ended(step.Completed, codes.FailedPrecondition, charge), true, true},
		{"a guard's answer of any code", status(codes.Aborted, "no"), ended(step.Completed, codes.Aborted, charge), true, true},
		{"a guard that has released the key", status(codes.Aborted, "no"), ended(step.Released, codes.Aborted, charge), true, false},
		{"what was made of a guard's answer", status(codes.Internal, "no"), ended(step.Completed, codes.FailedPrecondition, charge), false, false},
		{"a guard's answer to another key, passed on", status(codes.NotFound, "no"), ended(step.Completed, codes.NotFound, "another"), true, false},
		{"guarded, and then a bound outside", status(codes.DeadlineExceeded, "no"), []string{client.MetadataGuarded, "true"}, false, false},
		{"a guard that does not know", status(codes.FailedPrecondition, "no"), []string{client.MetadataGuarded, "true", client.MetadataUnknown, "true"}, false, false},
		{"a guard that could not store it yet", status(codes.FailedPrecondition, "no"), []string{client.MetadataGuarded, "true", client.MetadataNotRecorded, "true"}, false, false},
		{"one that observes and does not know", status(codes.FailedPrecondition, "no"), []string{client.MetadataUnknown, "true"}, false, false},
		{"nobody vouches for it", status(codes.FailedPrecondition, "no"), nil, true, false},
		{"not found", status(codes.NotFound, "no"), nil, true, false},
		{"connection refused", status(codes.Unavailable, "connection refused"), nil, false, false},
		{"deadline", context.DeadlineExceeded, nil, false, false},
		{"cancelled", context.Canceled, nil, false, false},
		{"rate limit", status(codes.ResourceExhausted, "too many calls"), nil, false, false},
		{"not authenticated", status(codes.Unauthenticated, "token expired"), nil, false, false},
		{"recovered from a panic", status(codes.Internal, "internal error"), nil, false, false},
	} {
		if got := isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			_ = asked(ctx, nil, answering(test.err, test.marks...), client.StepKey(ctx, "charge"))
			return declined
		}); got != test.answers {
			t.Errorf("%s: final %v, want %v", test.name, got, test.answers)
		}
		if got := isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			_ = refusedStep(ctx, client.StepKey(ctx, "charge"))
			_ = asked(ctx, nil, answering(test.err, test.marks...), client.StepKey(ctx, "charge"))
			return declined
		}); got != test.settles {
			t.Errorf("refused, then %s: final %v, want %v", test.name, got, test.settles)
		}
	}
}

// Whatever comes between a service that has acted and who called it, what that makes of it is not final.
func TestStepWithoutAnAnswer(t *testing.T) {
	recovery := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.FailedPrecondition, "not now")
			}
		}()
		return h(ctx, req)
	}
	for name, act := range map[string]func(r *rig) (*testv1.ChargeResponse, error){
		"the connection breaks": func(r *rig) (*testv1.ChargeResponse, error) { r.cut(); return &testv1.ChargeResponse{}, nil },
		"it panics":             func(*rig) (*testv1.ChargeResponse, error) { panic("nil map") },
	} {
		rigged(t, rigOptions{guard: []client.GuardOption{client.NoOwner()}, outer: []grpc.UnaryServerInterceptor{recovery}}, func(t *testing.T, r *rig) {
			charges := 0
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { charges++; return act(r) })
			if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
				if err := asked(ctx, r.conn, onTheWire, client.StepKey(ctx, "pay")); err == nil {
					t.Errorf("%s: no error", name)
				}
				return declined
			}) || charges != 1 {
				t.Errorf("%s: %d charges, and the intent is final", name, charges)
			}
		})
	}
}

// The interceptor asks again by itself, and finds nobody: what the first answer said stands.
func TestStepUnknownThenAway(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		tries := 0
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			return nil, status.Error(codes.Unavailable, "provider: connection reset")
		})
		away := func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
			if tries++; tries > 1 {
				return status.Error(codes.FailedPrecondition, "of a proxy")
			}
			return onTheWire(ctx, m, req, reply, cc, opts...)
		}
		if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			_ = asked(ctx, r.conn, away, client.StepKey(ctx, "pay"))
			return declined
		}) || tries != 2 {
			t.Errorf("%d tries, and the intent is final", tries)
		}
	})
}

// That an attempt did nothing says nothing of the one before it, of which nobody knows: not in the same process,
func TestStepUnknownThenNoEffect(t *testing.T) {
	for name, test := range map[string]struct {
		opts  []client.DoOption
		final bool
	}{
		"nobody looks": {nil, false},
		"it was looked up, and not found, and the key is free again": {[]client.DoOption{client.Recover(func(context.Context, *client.Attempt) (string, bool, error) {
			return "", false, nil
		})}, false},
	} {
		if got := isFinal(t, newStore(t), func(ctx context.Context, a *client.Attempt) error {
			steps := newStore(t)
			key := store.Key{Namespace: "default", Scope: "charge", ID: a.DownstreamKey("charge")}
			var err error
			for _, answer := range []error{errors.New("connection reset"), client.NoEffect(status.Error(codes.FailedPrecondition, "the breaker is open"))} {
				_, err = client.Do(ctx, steps, key, nil, func(context.Context, *client.Attempt) (string, error) { return "", answer }, test.opts...)
			}
			return err
		}); got != test.final {
			t.Errorf("%s: the intent is final: %v, want %v", name, got, test.final)
		}
	}
}

// nor in another one,
func TestServiceUnknownThenNoEffect(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		calls := 0
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			if calls++; calls == 1 {
				return nil, status.Error(codes.Internal, "connection reset")
			}
			return nil, client.NoEffect(status.Error(codes.FailedPrecondition, "the breaker is open"))
		})
		if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			_ = asked(ctx, r.conn, onTheWire, client.StepKey(ctx, "pay"))
			return asked(ctx, r.conn, onTheWire, client.StepKey(ctx, "pay"))
		}) {
			t.Error("the step is unsettled, and the intent is final")
		}
	})
}

// nor before a code that says so: released as new, the intent would be charged again once the step is forgotten.
func TestUnknownThenANoEffectCode(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		steps, charges := newStore(t), 0
		short(t, steps)
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			a, _ := client.AttemptFrom(ctx)
			key := store.Key{Namespace: "short", Scope: "charge", ID: a.DownstreamKey("charge")}
			take := func(busy bool) error {
				_, err := client.Do(ctx, steps, key, nil, func(context.Context, *client.Attempt) (string, error) {
					if busy {
						return "", client.NoEffect(status.Error(codes.Aborted, "the breaker is open"))
					}
					charges++
					return "", errors.New("connection reset")
				})
				return err
			}
			_ = take(false)
			return nil, take(true)
		})
		for range 2 {
			r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1)
			time.Sleep(3 * time.Hour)
		}
		if charges != 1 {
			t.Errorf("%d charges", charges)
		}
	}, client.Method(chargeMethod, client.Policy{NoEffect: []codes.Code{codes.Aborted}}))
}

// short makes a namespace that soon forgets.
func short(t *testing.T, s *faultyStore) {
	t.Helper()
	if _, err := s.inner.CreateNamespace(t.Context(), store.Namespace{Name: "short", Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
}

// A step that is still on its way when the handler gives up waiting is in doubt.
func TestStepOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		charges, done := 0, make(chan error, 1)
		if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			go func() {
				done <- asked(context.WithoutCancel(ctx), nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					time.Sleep(5 * time.Second)
					charges++
					return nil
				}, client.StepKey(ctx, "charge"))
			}()
			time.Sleep(time.Second)
			return declined
		}) {
			t.Error("the intent is final while its step goes on")
		}
		if err := <-done; err != nil || charges != 1 {
			t.Errorf("%v, %d charges", err, charges)
		}
	})
}

// What an attempt inside makes of a step of the one around it is not final either.
func TestOuterStepInsideAnotherDo(t *testing.T) {
	s := newStore(t)
	inner := store.Key{Namespace: "default", Scope: "other", ID: "intent"}
	isFinal(t, s, func(ctx context.Context, _ *client.Attempt) error {
		charge := client.StepKey(ctx, "charge")
		_, err := client.Do(ctx, s, inner, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
			_ = refusedStep(ctx, charge)
			return "", declined
		})
		return err
	})
	if got := s.inspect(t, inner).Record.State; got == store.StateCompleted {
		t.Error("the inner one is final, though the step was refused")
	}
}

// Of one name asked of two methods there are two steps.
func TestStepOfTwoMethods(t *testing.T) {
	if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
		_ = refusedStep(ctx, client.StepKey(ctx, "pay"))
		return client.UnaryClientInterceptor()(ctx, transferMethod, &testv1.TransferRequest{}, &testv1.ChargeResponse{}, nil,
			answering(declined, client.MetadataEnd, step.Mark(step.Completed, int(codes.FailedPrecondition), keys.Downstream(orderKey, "pay"))), client.StepKey(ctx, "pay"))
	}) {
		t.Error("Charge is in doubt, Transfer was declined, and the intent is final")
	}
}

// However the key of a step travels, and in whatever context, the step is not taken again when its outcome is forgotten.
func TestStepIsNotTakenAgain(t *testing.T) {
	charge := func(ctx context.Context, r *rig, opts ...grpc.CallOption) error {
		return asked(ctx, r.conn, onTheWire, opts...)
	}
	for name, take := range map[string]func(ctx context.Context, r *rig, a *client.Attempt) error{
		"in the request's field": func(ctx context.Context, r *rig, a *client.Attempt) error {
			return client.UnaryClientInterceptor()(ctx, refundMethod, &testv1.RefundRequest{RequestId: a.DownstreamKey("refund")}, &testv1.ChargeResponse{}, r.conn, onTheWire)
		},
		"in a context of its own": func(ctx context.Context, r *rig, _ *client.Attempt) error {
			return charge(context.WithoutCancel(t.Context()), r, client.StepKey(ctx, "charge"))
		},
		"as any key": func(ctx context.Context, r *rig, a *client.Attempt) error {
			return charge(ctx, r, client.Key(a.DownstreamKey("charge")))
		},
		"in metadata": func(ctx context.Context, r *rig, a *client.Attempt) error {
			return charge(metadata.AppendToOutgoingContext(ctx, client.MetadataKey, a.DownstreamKey("charge")), r)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, rigOptions{guard: []client.GuardOption{client.NoOwner(), client.Namespace("short")}})
			short(t, r.store.faultyStore)
			runs := 0
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { runs++; return &testv1.ChargeResponse{}, nil })
			s := newStore(t)
			var err error
			for range 2 {
				isFinal(t, s, func(ctx context.Context, a *client.Attempt) error {
					err = take(ctx, r, a)
					return errors.New("the database is away")
				})
				time.Sleep(3 * time.Hour)
			}
			if runs != 1 || !errors.Is(client.Refusal(err), store.ErrKeyExpired) {
				t.Errorf("%s: taken %d times, %v", name, runs, err)
			}
		})
	}
}

// Of an attempt that may have acted nobody knows when: a step that is not remembered is not taken.
func TestStepSinceLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, charges := newStore(t), 0
		short(t, s)
		var last error
		for range 2 {
			_, _ = client.Do(t.Context(), forgetful{s}, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
				key := store.Key{Namespace: "short", Scope: "charge", ID: a.DownstreamKey("charge")}
				_, last = client.Do(ctx, s, key, nil, func(context.Context, *client.Attempt) (string, error) { charges++; return "ok", nil })
				return "", errors.New("the database is away")
			})
			time.Sleep(3 * time.Hour)
		}
		if charges != 1 || !errors.Is(last, store.ErrKeyExpired) {
			t.Errorf("%d charges, %v", charges, last)
		}
	})
}

// A guard that observes says too what it does not know.
func TestObservedStepInDoubt(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			_ = refusedStep(ctx, client.StepKey(ctx, "charge"))
			return nil, declined
		})
		if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			return asked(ctx, r.conn, onTheWire, client.StepKey(ctx, "pay"))
		}) {
			t.Error("the intent is final")
		}
	}, client.Observe())
}

// A service whose guard is not set up fails nobody's intents for good.
func TestStepOfAServiceThatIsNotSetUp(t *testing.T) {
	rigged(t, rigOptions{}, func(t *testing.T, r *rig) {
		var err error
		if isFinal(t, newStore(t), func(ctx context.Context, _ *client.Attempt) error {
			err = asked(ctx, r.conn, onTheWire, client.StepKey(ctx, "pay"))
			return err
		}) || !errors.Is(client.Refusal(err), store.ErrInternal) {
			t.Errorf("the intent is final: %v", err)
		}
	})
}

// What the code finds out by itself ends the doubt.
func TestStepAnswered(t *testing.T) {
	if !isFinal(t, newStore(t), func(ctx context.Context, a *client.Attempt) error {
		_ = refusedStep(ctx, client.StepKey(ctx, "charge"))
		if !a.StepInDoubt() {
			t.Error("no doubt")
		}
		a.StepAnswered(a.DownstreamKey("ship"))
		if !a.StepInDoubt() {
			t.Error("another step's answer ended the doubt")
		}
		a.StepAnswered(a.DownstreamKey("charge")) // it was looked up
		return declined
	}) {
		t.Error("the intent is not final")
	}
}

// An intent time that was merely copied from the incoming call goes on with no key but that call's.
func TestCopiedIntentTime(t *testing.T) {
	in := metadata.Pairs(client.MetadataKey, key1, client.MetadataIntentTime, "2020-01-01T00:00:00Z")
	ctx := metadata.NewOutgoingContext(metadata.NewIncomingContext(t.Context(), in), in.Copy())
	for name, test := range map[string]struct {
		opts []grpc.CallOption
		want int
	}{"a given key": {[]grpc.CallOption{client.Key("mine")}, 0}, "a drawn key": {nil, 0}, "the call's": {[]grpc.CallOption{client.Key(key1)}, 1}} {
		if got := sentBy(ctx, t, test.opts...).Get(client.MetadataIntentTime); len(got) != test.want {
			t.Errorf("%s: the intent time is %v", name, got)
		}
	}
}

// The steps of a code that carries out another intent are not this one's.
func TestWithoutAttempt(t *testing.T) {
	if !isFinal(t, newStore(t), func(ctx context.Context, a *client.Attempt) error {
		other := client.WithoutAttempt(ctx)
		if got, ok := client.AttemptFrom(other); ok || got != nil {
			t.Errorf("it has the attempt %v", got)
		}
		_ = refusedStep(other, client.Key(a.DownstreamKey("charge")))
		return declined
	}) {
		t.Error("the intent is not final")
	}
}

// Of two that ask at once one gets the stored answer, and the other none: the step is settled.
func TestStepAskedTwice(t *testing.T) {
	if !isFinal(t, newStore(t), func(ctx context.Context, a *client.Attempt) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = asked(ctx, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				_ = asked(ctx, nil, answering(declined, client.MetadataEnd, step.Mark(step.Completed, int(codes.FailedPrecondition), a.DownstreamKey("pay"))), client.StepKey(ctx, "pay"))
				return context.Canceled
			}, client.StepKey(ctx, "pay"))
		}()
		<-done
		return declined
	}) {
		t.Error("not final, though the guard has stored how the step failed")
	}
}

// A guard inside another one, with keys of its own, does not know; nor does the one outside then.
func TestStepInDoubtInsideTwoGuards(t *testing.T) {
	twice(t, nil, []client.GuardOption{client.Namespace("other")}, func(t *testing.T, r *rig) {
		if _, err := r.store.inner.CreateNamespace(t.Context(), store.Namespace{Name: "other"}.WithDefaults()); err != nil {
			t.Fatal(err)
		}
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			_ = refusedStep(ctx, client.StepKey(ctx, "charge"))
			return nil, declined
		})
		r.once()
		r.state(store.StateInProgress)
	})
}

// What the code has found out holds for what it had asked, not for what it asks later.
func TestStepAnsweredThenAskedAgain(t *testing.T) {
	if isFinal(t, newStore(t), func(ctx context.Context, a *client.Attempt) error {
		_ = asked(ctx, nil, answering(status.Error(codes.ResourceExhausted, "too many calls")), client.StepKey(ctx, "charge"))
		a.StepAnswered(a.DownstreamKey("charge")) // it does nothing then
		if a.StepInDoubt() {
			t.Error("in doubt, though the code knows")
		}
		_ = asked(ctx, nil, answering(status.Error(codes.Unavailable, "connection reset")), client.StepKey(ctx, "charge"))
		return declined
	}) {
		t.Error("the reply to the second call is lost, and the intent is final")
	}
}

// A failure of a Do that could not be stored yet is none for whoever comes later.
func TestStepThatIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := newStore(t)
		for _, operation := range []string{"complete", "renew"} {
			steps.fail(operation, store.Refuse(store.ErrUnavailable, "away"))
		}
		if isFinal(t, newStore(t), func(ctx context.Context, a *client.Attempt) error {
			key := store.Key{Namespace: "default", Scope: "charge", ID: a.DownstreamKey("charge")}
			_, err := client.Do(ctx, steps, key, nil, func(context.Context, *client.Attempt) (string, error) { return "", declined })
			return err
		}) {
			t.Error("the intent is final, and the step is not stored")
		}
		steps.fail("complete", nil)
		if err := client.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
