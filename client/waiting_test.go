package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// bareStore answers at once, as an embedded store without a Waiter does.
type bareStore struct {
	*storetest.Memory

	mu     sync.Mutex
	claims int
	fail   error // of claims, from the second of a call on
}

func newBareStore() *bareStore {
	return &bareStore{Memory: storetest.NewMemory(bubbleClock{time.Now()})}
}

func (s *bareStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	s.mu.Lock()
	s.claims++
	fail := s.fail
	if s.claims == 1 {
		fail = nil
	}
	s.mu.Unlock()
	if fail != nil {
		return store.ClaimAnswer{}, fail
	}
	return s.Memory.Claim(ctx, req)
}

// since counts claims from now on.
func (s *bareStore) since(fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims, s.fail = 0, fail
}

// holds makes an attempt that acts for a time, and returns once it has the key.
func (s *bareStore) holds(t *testing.T, d time.Duration) {
	go func() {
		_, err := client.Do(context.WithoutCancel(t.Context()), s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
			time.Sleep(d)
			return "first", nil
		})
		if err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
}

// Wait works on every store: one that answers at once is asked again, about once a second.
func TestWaitOnAStoreThatDoesNotWait(t *testing.T) { synctest.Test(t, testWaitOnAStoreThatDoesNotWait) }

func testWaitOnAStoreThatDoesNotWait(t *testing.T) {
	s := newBareStore()
	s.holds(t, 100*time.Second)
	fn, runs := returns("second", nil)
	for _, wait := range []time.Duration{time.Millisecond, 2500 * time.Millisecond, 40 * time.Second} {
		s.since(nil)
		start, events := time.Now(), &eventLog{}
		_, err := client.Do(t.Context(), s, orderKey, nil, fn, client.Wait(wait), client.OnEvent(events.add))
		if took := time.Since(start); !errors.Is(err, store.ErrKeyInProgress) || took != wait {
			t.Errorf("wait %v: %v after %v", wait, err, took)
		}
		if most := int(wait/time.Second) + 3; s.claims < 2 || s.claims > most {
			t.Errorf("wait %v: claimed %d times, want at most %d", wait, s.claims, most)
		}
		equalKinds(t, events.take(), client.EventInProgress)
	}
	// The holder is done while it is waited for.
	start := time.Now()
	got, err := client.Do(t.Context(), s, orderKey, nil, fn, client.Wait(5*time.Minute))
	if err != nil || !got.Replayed || got.Value != "first" || *runs != 0 {
		t.Errorf("%+v, %v, ran %d times", got, err, *runs)
	}
	if late := got.Age; late > time.Second || time.Since(start) < 50*time.Second {
		t.Errorf("told %v late, after %v", late, time.Since(start))
	}
}

// The lease that is granted after a wait counts from the claim that was answered.
func TestWaitUntilALapse(t *testing.T) { synctest.Test(t, testWaitUntilALapse) }

func testWaitUntilALapse(t *testing.T) {
	s := newBareStore()
	if _, err := s.Claim(t.Context(), store.ClaimRequest{Key: orderKey, AttemptID: "dead", Lease: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err := client.Do(t.Context(), s, orderKey, nil, func(_ context.Context, a *client.Attempt) (string, error) {
		if late := time.Since(start) - 10*time.Second; late < 0 || late > time.Second || !a.Unsettled {
			t.Errorf("granted %v after the lapse, %+v", late, a)
		}
		if left := time.Until(a.Deadline()); left != 29*time.Second {
			t.Errorf("%v of a lease of 30s is left", left)
		}
		return "", nil
	}, client.Lease(30*time.Second), client.Wait(time.Minute))
	if err != nil {
		t.Error(err)
	}
}

// A caller's deadline ends the wait in time to be told.
func TestWaitWithADeadline(t *testing.T) { synctest.Test(t, testWaitWithADeadline) }

func testWaitWithADeadline(t *testing.T) {
	s := newBareStore()
	s.holds(t, time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	fn, _ := returns("", nil)
	start := time.Now()
	_, err := client.Do(ctx, s, orderKey, nil, fn, client.Wait(time.Minute))
	if took := time.Since(start); !errors.Is(err, store.ErrKeyInProgress) || took < 3*time.Second || took >= 5*time.Second {
		t.Errorf("%v after %v", err, took)
	}
	time.Sleep(time.Minute)
}

// A store that goes away during a wait has said that somebody holds the key: nobody acts
// beside that one, even where failing open is asked for.
func TestStoreGoesDownDuringAWait(t *testing.T) {
	for _, fail := range []error{store.ErrUnavailable, context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			s, events := newBareStore(), &eventLog{}
			policy := client.Policy{FailOpen: true, Wait: 10 * time.Second}
			guard := client.NewGuard(s, client.NoOwner(), client.Method(chargeMethod, policy), client.OnEvent(events.add))
			go func() { _, _ = guardedCall(context.Background(), guard, func() { time.Sleep(10 * time.Second) }) }()
			synctest.Wait()
			events.take()
			s.since(fail)
			ran := false
			_, err := guardedCall(t.Context(), guard, func() { ran = true })
			refused(t, err, codes.Aborted, "KEY_IN_PROGRESS")
			if ran {
				t.Error("it acted beside the holder")
			}
			equalKinds(t, events.take(), client.EventInProgress)
			s.since(nil)
			time.Sleep(time.Minute)
			if err := client.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
