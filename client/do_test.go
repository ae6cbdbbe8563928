package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

var orderKey = store.Key{Namespace: "default", Scope: "charge", ID: "order-1", Entity: "customer-7"}

// returns makes a function for Do that counts its runs.
func returns[T any](value T, err error) (fn func(context.Context, *client.Attempt) (T, error), runs *int) {
	runs = new(int)
	return func(context.Context, *client.Attempt) (T, error) {
		*runs++
		return value, err
	}, runs
}

func equalKinds(t *testing.T, got []client.EventKind, want ...client.EventKind) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestDoReplays(t *testing.T) {
	t.Run("message", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { doReplays(t, wrapperspb.String("charged")) })
	})
	t.Run("text", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { doReplays(t, "charged") }) })
	t.Run("bytes", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { doReplays(t, []byte("charged")) }) })
	t.Run("json", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { doReplays(t, map[string]int{"charged": 42}) })
	})
}

func doReplays[T any](t *testing.T, value T) {
	s, events := newStore(t), &eventLog{}
	fn, runs := returns(value, nil)
	first, err := client.Do(t.Context(), s, orderKey, "42 EUR", fn, client.OnEvent(events.add))
	if err != nil || first.Replayed || !first.Recorded {
		t.Fatalf("first: %+v, %v", first, err)
	}
	equalKinds(t, events.take(), client.EventGranted, client.EventRecorded)
	time.Sleep(time.Minute)
	again, err := client.Do(t.Context(), s, orderKey, "42 EUR", fn, client.OnEvent(events.add))
	if err != nil || !again.Replayed || !again.Recorded || again.Age != time.Minute {
		t.Fatalf("again: %+v, %v", again, err)
	}
	equalValues(t, again.Value, value)
	equalKinds(t, events.take(), client.EventReplayed)
	if *runs != 1 || s.count("claim") != 2 || s.count("complete") != 1 {
		t.Errorf("ran %d times; %v", *runs, s.calls)
	}
	if _, err := client.Do(t.Context(), s, orderKey, "43 EUR", fn); !errors.Is(err, store.ErrFingerprintMismatch) || *runs != 1 {
		t.Errorf("another request: %v", err)
	}
}

// Case 26, 27: what an error means.
func TestDoErrors(t *testing.T) {
	plain := errors.New("connection reset")
	for _, test := range []struct {
		name  string
		err   error
		state store.State
		event client.EventKind
	}{
		{"plain", plain, store.StateInProgress, client.EventUnknown},
		{"unavailable", status.Error(codes.Unavailable, "gone"), store.StateInProgress, client.EventUnknown},
		{"internal", status.Error(codes.Internal, "oops"), store.StateInProgress, client.EventUnknown},
		{"aborted", status.Error(codes.Aborted, "nested"), store.StateInProgress, client.EventUnknown},
		{"cancelled", context.Canceled, store.StateInProgress, client.EventUnknown},
		{"marked", client.NoEffect(plain), store.StateReleased, client.EventReleased},
		{"declined", status.Error(codes.FailedPrecondition, "declined"), store.StateCompleted, client.EventRecorded},
		{"invalid", status.Error(codes.InvalidArgument, "no amount"), store.StateCompleted, client.EventRecorded},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, events := newStore(t), &eventLog{}
				fn, _ := returns("", test.err)
				_, err := client.Do(t.Context(), s, orderKey, nil, fn, client.OnEvent(events.add))
				if err == nil || err.Error() != test.err.Error() || status.Code(err) != status.Code(errors.Unwrap(client.NoEffect(test.err))) && test.name != "marked" {
					t.Errorf("got %v", err)
				}
				if marked := client.NoEffect(plain); errors.Is(err, plain) && err == marked { //nolint:errorlint // the very error
					t.Error("the mark goes on to the caller, whose intent is another")
				}
				if rec := s.inspect(t, orderKey).Record; rec.State != test.state {
					t.Errorf("state %v", rec.State)
				}
				if last := events.last(); errors.Is(last.Err, test.err) != (last.Kind == client.EventUnknown) {
					t.Errorf("the event %v says %v", last.Kind, last.Err) // an outcome or what was released is not in it
				}
				equalKinds(t, events.take(), client.EventGranted, test.event)
			})
		})
	}
}

func TestDoTellsToCheck(t *testing.T) { synctest.Test(t, testDoTellsToCheck) }

func testDoTellsToCheck(t *testing.T) {
	s := newStore(t)
	lost, _ := returns("", errors.New("connection reset"))
	_, _ = client.Do(t.Context(), s, orderKey, nil, lost)

	// A hook that cannot find out leaves it unknown, whatever its error's code.
	fn, runs := returns("charged again", nil)
	failing := client.Recover(func(context.Context, *client.Attempt) (string, bool, error) {
		return "", false, client.NoEffect(status.Error(codes.NotFound, "no such provider"))
	})
	if _, err := client.Do(t.Context(), s, orderKey, nil, fn, failing); err == nil || *runs != 0 {
		t.Errorf("hook failed: ran %d times, %v", *runs, err)
	}
	if rec := s.inspect(t, orderKey).Record; rec.State != store.StateInProgress {
		t.Errorf("state %v after a hook that failed", rec.State)
	}

	var told *client.Attempt
	found := client.Recover(func(_ context.Context, a *client.Attempt) (string, bool, error) {
		told = a
		return "charged before", true, nil
	})
	got, err := client.Do(t.Context(), s, orderKey, nil, fn, found)
	if err != nil || got.Value != "charged before" || *runs != 0 || !told.Unsettled || told.Number != 3 {
		t.Errorf("hook found it: %+v, %v, ran %d times, %+v", got, err, *runs, told)
	}
	again, err := client.Do(t.Context(), s, orderKey, nil, fn)
	if err != nil || again.Value != "charged before" || !again.Replayed {
		t.Errorf("repeat: %+v, %v", again, err)
	}
}

func TestRecoverOfAnotherType(t *testing.T) { synctest.Test(t, testRecoverOfAnotherType) }

func testRecoverOfAnotherType(t *testing.T) {
	s := newStore(t)
	fn, runs := returns("", nil)
	hook := client.Recover(func(context.Context, *client.Attempt) (int, bool, error) { return 0, false, nil })
	if _, err := client.Do(t.Context(), s, orderKey, nil, fn, hook); !errors.Is(err, store.ErrInvalidArgument) || *runs+s.count("claim") != 0 {
		t.Errorf("%v", err)
	}
}

func TestDoHeld(t *testing.T) { synctest.Test(t, testDoHeld) }

func testDoHeld(t *testing.T) {
	s, events := newStore(t), &eventLog{}
	lost, _ := returns("", errors.New("connection reset"))
	_, _ = client.Do(t.Context(), s, orderKey, nil, lost, client.Hold())
	fn, runs := returns("", nil)
	if _, err := client.Do(t.Context(), s, orderKey, nil, fn, client.OnEvent(events.add)); !errors.Is(err, store.ErrKeyUnresolved) || *runs != 0 {
		t.Errorf("%v", err)
	}
	equalKinds(t, events.take(), client.EventUnresolved)
}

// Case 13: the lease of a function that runs on is renewed.
func TestDoOutlivesItsLease(t *testing.T) { synctest.Test(t, testDoOutlivesItsLease) }

func testDoOutlivesItsLease(t *testing.T) {
	s := newStore(t)
	got, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
		for range 100 {
			time.Sleep(time.Second)
			if ctx.Err() != nil || time.Until(a.Deadline()) < 3*time.Second {
				return "", errors.New("not renewed in time")
			}
		}
		other, _ := returns("", nil)
		if _, err := client.Do(t.Context(), s, orderKey, nil, other); !errors.Is(err, store.ErrKeyInProgress) {
			t.Errorf("another while it runs: %v", err)
		}
		return "done", nil
	}, client.Lease(10*time.Second))
	if err != nil || !got.Recorded || s.count("renew") > 40 {
		t.Errorf("%+v, %v, %d renewals", got, err, s.count("renew"))
	}
}

// Case 13, 23: a lease that cannot be renewed is lost here before it ends at the store; what
// is done later does not count once another attempt has taken over.
func TestDoLosesItsLease(t *testing.T) { synctest.Test(t, testDoLosesItsLease) }

func testDoLosesItsLease(t *testing.T) {
	s, events := newStore(t), &eventLog{}
	start := time.Now()
	_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
		s.fail("renew", store.ErrUnavailable)
		<-ctx.Done()
		if took := time.Since(start); took < 8*time.Second || took >= 10*time.Second {
			t.Errorf("lost after %v of 10 s", took)
		}
		if !errors.Is(context.Cause(ctx), client.ErrLeaseLost) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		time.Sleep(10 * time.Second)
		s.fail("renew", nil)
		other, _ := returns("the other's", nil)
		if got, err := client.Do(t.Context(), s, orderKey, nil, other); err != nil || got.Replayed {
			t.Errorf("taken over: %+v, %v", got, err)
		}
		return "too late", nil
	}, client.Lease(10*time.Second), client.OnEvent(events.add))
	if !errors.Is(err, store.ErrStaleFence) {
		t.Errorf("%v", err)
	}
	equalKinds(t, events.take(), client.EventGranted, client.EventLeaseLost, client.EventRecordingFailed)
	got := s.inspect(t, orderKey)
	if string(got.Record.Outcome.Body) != "the other's" || string(got.Events[len(got.Events)-1].Outcome.Body) != "too late" {
		t.Errorf("%+v", got)
	}
}

// A holder that is told that another has the key stops at once.
func TestDoIsToldThatItsLeaseIsLost(t *testing.T) { synctest.Test(t, testDoIsToldThatItsLeaseIsLost) }

func testDoIsToldThatItsLeaseIsLost(t *testing.T) {
	s := newStore(t)
	_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
		s.fail("renew", store.ErrStaleFence)
		start := time.Now()
		<-ctx.Done()
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("told after %v", took)
		}
		return "", ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Case 24: the caller goes away after the effect.
func TestDoRecordsWhenTheCallerIsGone(t *testing.T) {
	synctest.Test(t, testDoRecordsWhenTheCallerIsGone)
}

func testDoRecordsWhenTheCallerIsGone(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	got, err := client.Do(ctx, s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
		cancel()
		return "charged", nil
	})
	if err != nil || !got.Recorded || s.inspect(t, orderKey).Record.State != store.StateCompleted {
		t.Errorf("%+v, %v", got, err)
	}
}

// Case 25: the store fails after the effect.
func TestDoRecordsLater(t *testing.T) { synctest.Test(t, testDoRecordsLater) }

func testDoRecordsLater(t *testing.T) {
	s, events := newStore(t), &eventLog{}
	got, err := client.Do(t.Context(), s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
		s.fail("complete", store.ErrUnavailable)
		return "charged", nil
	}, client.OnEvent(events.add), client.Lease(10*time.Second))
	if err != nil || got.Value != "charged" || got.Recorded {
		t.Fatalf("%+v, %v", got, err)
	}
	equalKinds(t, events.take(), client.EventGranted, client.EventNotRecorded)
	time.Sleep(time.Minute) // longer than the lease
	other, runs := returns("", nil)
	if _, err := client.Do(t.Context(), s, orderKey, nil, other); !errors.Is(err, store.ErrKeyInProgress) || *runs != 0 {
		t.Errorf("a repeat meanwhile: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client.Drain(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain did not wait: %v", err)
	}
	s.fail("complete", nil)
	if err := client.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	equalKinds(t, events.take(), client.EventRecorded)
	if again, err := client.Do(t.Context(), s, orderKey, nil, other); err != nil || again.Value != "charged" || s.count("release") != 0 {
		t.Errorf("afterwards: %+v, %v", again, err)
	}
}

// Case 33: a panic after the effect.
func TestDoPanics(t *testing.T) { synctest.Test(t, testDoPanics) }

func testDoPanics(t *testing.T) {
	s := newStore(t)
	func() {
		defer func() {
			if got := recover(); got != "oops" {
				t.Errorf("recovered %v", got)
			}
		}()
		_, _ = client.Do(t.Context(), s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) { panic("oops") })
	}()
	_, err := client.Do(t.Context(), s, orderKey, nil, func(_ context.Context, a *client.Attempt) (string, error) {
		if !a.Unsettled {
			t.Error("not told to check")
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Case 32: what is too large is stored without its body, and not carried out again.
func TestDoTooLarge(t *testing.T) { synctest.Test(t, testDoTooLarge) }

func testDoTooLarge(t *testing.T) {
	s := newStore(t)
	fn, runs := returns(make([]byte, 5<<20), nil)
	got, err := client.Do(t.Context(), s, orderKey, nil, fn)
	if err != nil || len(got.Value) != 5<<20 || !got.Recorded {
		t.Fatalf("%v, %v", got.Recorded, err)
	}
	if _, err := client.Do(t.Context(), s, orderKey, nil, fn); !errors.Is(err, store.ErrOutcomeOmitted) || *runs != 1 {
		t.Errorf("a repeat: %v, ran %d times", err, *runs)
	}
}

// What was stored as something else is not carried out again either.
func TestDoReadsAnotherType(t *testing.T) { synctest.Test(t, testDoReadsAnotherType) }

func testDoReadsAnotherType(t *testing.T) {
	s := newStore(t)
	text, _ := returns("charged", nil)
	_, _ = client.Do(t.Context(), s, orderKey, nil, text)
	message, runs := returns(wrapperspb.Int64(1), nil)
	if got, err := client.Do(t.Context(), s, orderKey, nil, message); !errors.Is(err, store.ErrOutcomeOmitted) || got.Value != nil || *runs != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDoWaits(t *testing.T) { synctest.Test(t, testDoWaits) }

func testDoWaits(t *testing.T) {
	s := newStore(t)
	var group sync.WaitGroup
	runs := 0
	for range 100 {
		group.Go(func() {
			got, err := client.Do(t.Context(), s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
				runs++
				time.Sleep(5 * time.Second)
				return "charged", nil
			}, client.Wait(10*time.Second))
			if err != nil || got.Value != "charged" {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	group.Wait()
	if runs != 1 {
		t.Errorf("ran %d times", runs)
	}
}

// A wait that is longer than the lease leaves all of the lease.
func TestDoWaitsLongerThanItsLease(t *testing.T) {
	synctest.Test(t, testDoWaitsLongerThanItsLease)
}

func testDoWaitsLongerThanItsLease(t *testing.T) {
	s := newStore(t)
	running := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		_, _ = client.Do(t.Context(), s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
			close(running)
			time.Sleep(40 * time.Second)
			return "", client.NoEffect(errors.New("no stock"))
		})
	})
	<-running
	got, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
		if left := time.Until(a.Deadline()); left != 29*time.Second {
			t.Errorf("%v left of a lease of 30 s, want 29 s", left)
		}
		return "charged", ctx.Err()
	}, client.Wait(time.Minute), client.Lease(30*time.Second))
	if err != nil || got.Value != "charged" || !got.Recorded || got.Replayed {
		t.Errorf("%+v, %v", got, err)
	}
	group.Wait()
}

// Case 38: the store is gone.
func TestDoStoreDown(t *testing.T) { synctest.Test(t, testDoStoreDown) }

func testDoStoreDown(t *testing.T) {
	s, events := newStore(t), &eventLog{}
	s.fail("claim", store.ErrUnavailable)
	fn, runs := returns("", nil)
	if _, err := client.Do(t.Context(), s, orderKey, nil, fn, client.OnEvent(events.add)); !errors.Is(err, store.ErrUnavailable) || *runs != 0 {
		t.Errorf("%v", err)
	}
	equalKinds(t, events.take(), client.EventStoreDown)
}

// An error of an attempt that was told to check is no final answer, unless [client.Recover]
// found that nothing was done.
func TestDoErrorInDoubt(t *testing.T) { synctest.Test(t, testDoErrorInDoubt) }

func testDoErrorInDoubt(t *testing.T) {
	s := newStore(t)
	lost, _ := returns("", errors.New("connection reset"))
	_, _ = client.Do(t.Context(), s, orderKey, nil, lost)
	paid, runs := returns("", status.Error(codes.FailedPrecondition, "already paid"))
	nothing := client.Recover(func(context.Context, *client.Attempt) (string, bool, error) { return "", false, nil })
	for i, opts := range [][]client.DoOption{nil, nil, {nothing}, nil} {
		events := &eventLog{}
		_, err := client.Do(t.Context(), s, orderKey, nil, paid, append(opts, client.OnEvent(events.add))...)
		if status.Code(err) != codes.FailedPrecondition {
			t.Error(err)
		}
		equalKinds(t, events.take(), [][]client.EventKind{
			{client.EventTakeover, client.EventUnknown}, {client.EventTakeover, client.EventUnknown},
			{client.EventTakeover, client.EventRecorded}, {client.EventReplayed},
		}[i]...)
	}
	if *runs != 3 {
		t.Errorf("ran %d times", *runs)
	}
}
