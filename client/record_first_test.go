package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

const handedOver = "handed over to the mail server"

func TestRecordFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events := newStore(t), &eventLog{}
		opts := []client.DoOption{client.RecordFirst(handedOver), client.OnEvent(events.add)}
		var during client.Result[string]
		first, err := client.Do(t.Context(), s, orderKey, "hello", func(ctx context.Context, a *client.Attempt) (string, error) {
			if s.count("complete") != 1 || a.Number != 1 || a.Unsettled {
				t.Errorf("acts after %v, as %+v", s.calls, a)
			}
			if got, ok := client.AttemptFrom(ctx); !ok || got != a {
				t.Error("its context has no attempt")
			}
			time.Sleep(time.Hour) // no lease ends it
			var err error
			during, err = client.Do(ctx, s, orderKey, "hello", never, opts...)
			return "sent as message 7", errors.Join(err, ctx.Err())
		}, opts...)
		if err != nil || first.Value != "sent as message 7" || first.Replayed || !first.Recorded || first.RecordedFirst {
			t.Errorf("first: %+v, %v", first, err)
		}
		after, err := client.Do(t.Context(), s, orderKey, "hello", never, client.OnEvent(events.add)) // whoever asks
		for _, again := range []client.Result[string]{during, after} {
			if err != nil || again.Value != handedOver || !again.Replayed || !again.Recorded || !again.RecordedFirst || again.Age != time.Hour {
				t.Errorf("again: %+v, %v", again, err)
			}
		}
		if s.count("complete") != 1 || s.count("renew") != 0 || s.count("release") != 0 {
			t.Errorf("asked %v", s.calls)
		}
		equalKinds(t, events.take(), client.EventGranted, client.EventRecorded, client.EventReplayed, client.EventReplayed)
	})
}

func never(context.Context, *client.Attempt) (string, error) { panic("never runs") }

// Whatever fn ends with, it was recorded, and does not run again.
func TestRecordFirstErrors(t *testing.T) {
	for _, failure := range []error{
		errors.New("connection reset"), client.NoEffect(errors.New("the mail server is closed")), status.Error(codes.NotFound, "no such address"),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			fn, _ := returns("ignored", failure)
			got, err := client.Do(t.Context(), s, orderKey, nil, fn, client.RecordFirst(handedOver))
			if err == nil || err.Error() != failure.Error() || !got.Recorded || got.Value != "" {
				t.Errorf("%+v, %v", got, err)
			}
			again, err := client.Do(t.Context(), s, orderKey, nil, never, client.RecordFirst(handedOver))
			if err != nil || again.Value != handedOver || !again.RecordedFirst {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
}

func TestRecordFirstPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = client.Do(t.Context(), s, orderKey, nil, never, client.RecordFirst(handedOver))
		}()
		if rec := s.inspect(t, orderKey).Record; rec.State != store.StateCompleted {
			t.Errorf("state %v", rec.State)
		}
	})
}

// What could not be recorded is not done, and is free for the next attempt.
func TestRecordFirstNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.fail("complete", store.ErrUnavailable)
		got, err := client.Do(t.Context(), s, orderKey, nil, never, client.RecordFirst(handedOver))
		if !errors.Is(err, store.ErrUnavailable) || got.Recorded {
			t.Errorf("%+v, %v", got, err)
		}
		if rec := s.inspect(t, orderKey).Record; rec.State != store.StateReleased {
			t.Errorf("state %v", rec.State)
		}
		s.fail("complete", nil)
		fn, runs := returns("sent", nil)
		if got, err := client.Do(t.Context(), s, orderKey, nil, fn, client.RecordFirst(handedOver)); err != nil || got.Value != "sent" || *runs != 1 {
			t.Errorf("again: %+v, %v", got, err)
		}
	})
}

// That it was recorded was lost on the way: it is not done, now or later.
func TestRecordFirstAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		_, err := client.Do(t.Context(), losesReplies{s}, orderKey, nil, never, client.RecordFirst(handedOver))
		if !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
		again, err := client.Do(t.Context(), s, orderKey, nil, never, client.RecordFirst(handedOver))
		if err != nil || again.Value != handedOver || !again.RecordedFirst {
			t.Errorf("again: %+v, %v", again, err)
		}
	})
}

// losesReplies loses the answers to Complete.
type losesReplies struct{ *faultyStore }

func (s losesReplies) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	_, _ = s.faultyStore.Complete(ctx, req)
	return store.CompleteAnswer{}, store.ErrUnavailable
}

// Of two attempts the one that records acts, also if the other had the key first.
func TestRecordFirstTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t)
		s := &hangingStore{faultyStore: inner, first: map[string]func(){}}
		fn, runs := returns("sent", nil)
		s.before("complete", func() {
			inner.fail("renew", store.ErrUnavailable)
			time.Sleep(2 * time.Second) // past the lease
			got, err := client.Do(t.Context(), inner, orderKey, nil, fn, client.RecordFirst(handedOver))
			if err != nil || got.Replayed {
				t.Errorf("the second: %+v, %v", got, err)
			}
		})
		_, err := client.Do(t.Context(), s, orderKey, nil, never, client.RecordFirst(handedOver), client.Lease(time.Second))
		if !errors.Is(err, store.ErrStaleFence) || *runs != 1 {
			t.Errorf("the first: %v; ran %d times", err, *runs)
		}
	})
}

// A value that does not fit is not recorded in part, and nothing is done.
func TestRecordFirstTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		_, err := client.Do(t.Context(), s, orderKey, nil, never, client.RecordFirst(string(make([]byte, store.MaxOutcomeBytes))))
		if !errors.Is(err, store.ErrOutcomeTooLarge) {
			t.Error(err)
		}
		if rec := s.inspect(t, orderKey).Record; rec.State != store.StateReleased {
			t.Errorf("state %v", rec.State)
		}
	})
}

func TestRecordFirstSetUp(t *testing.T) {
	find := client.Recover(func(context.Context, *client.Attempt) (string, bool, error) { return "", false, nil })
	for name, opts := range map[string][]client.DoOption{
		"another type":  {client.RecordFirst(7)},
		"an interface":  {client.RecordFirst[any](nil)},
		"recover":       {client.RecordFirst(""), find},
		"provider keys": {client.RecordFirst(""), client.ProviderKeys(keyRetention), client.IntentTime(time.Now())},
	} {
		s, stop := memory()
		if _, err := client.Do(t.Context(), s, orderKey, nil, never, opts...); !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
		stop()
	}
	s, stop := memory()
	defer stop()
	type bad struct{ F func() }
	_, err := client.Do(t.Context(), s, orderKey, nil, func(context.Context, *client.Attempt) (bad, error) { panic("never runs") }, client.RecordFirst(bad{}))
	if !errors.Is(err, store.ErrInvalidArgument) {
		t.Errorf("a value that cannot be encoded: %v", err)
	}
}

// slowStore takes its time to complete.
type slowStore struct {
	store.Store
	takes time.Duration
}

func (s slowStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	time.Sleep(s.takes)
	return s.Store.Complete(ctx, req)
}

// What was recorded first is done although the lease of an attempt around it is lost meanwhile; if the caller leaves, that
// ends it.
func TestRecordFirstBeyondALease(t *testing.T) {
	for _, lost := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, steps := newStore(t), newStore(t)
			caller, leave := context.WithTimeout(t.Context(), time.Hour)
			defer leave()
			var ran bool
			_, err := client.Do(caller, s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
				if lost {
					s.fail("renew", store.Refuse(store.ErrUnavailable, ""))
				}
				time.Sleep(time.Until(a.Deadline()) - time.Second)
				mail := store.Key{Namespace: "default", Scope: "mail", ID: a.DownstreamKey("mail")}
				_, err := client.Do(ctx, slowStore{steps, 2 * time.Second}, mail, nil, func(acting context.Context, _ *client.Attempt) (string, error) {
					ran = true
					if gone := errors.Is(context.Cause(ctx), client.ErrLeaseLost); gone != lost || acting.Err() != nil {
						t.Errorf("lost %v: the lease around it is lost: %v; it acts with %v", lost, gone, acting.Err())
					}
					if deadline, ok := acting.Deadline(); !ok || time.Until(deadline) > time.Hour {
						t.Errorf("the deadline is %v, %v", deadline, ok)
					}
					if !lost {
						leave()
						<-acting.Done()
					}
					return "sent", nil
				}, client.RecordFirst("handed over"))
				return "", err
			})
			if !ran {
				t.Errorf("lost %v: nothing was done: %v", lost, err)
			}
		})
	}
}
