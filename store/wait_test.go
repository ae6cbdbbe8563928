package store_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// bubbleClock is a clock source inside a synctest bubble.
type bubbleClock struct{ start time.Time }

func (c bubbleClock) Wall() time.Time          { return time.Now() }
func (c bubbleClock) Monotonic() time.Duration { return time.Since(c.start) }

// countingStore counts what reaches the store.
type countingStore struct {
	store.Store
	claims, lookups atomic.Int64
}

func (s *countingStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	s.claims.Add(1)
	return s.Store.Claim(ctx, req)
}

func (s *countingStore) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	s.lookups.Add(1)
	return s.Store.Lookup(ctx, req)
}

// newWaiter returns a waiter over a counted in-memory store, inside a bubble.
func newWaiter(t *testing.T, options store.WaiterOptions) (*store.Waiter, *countingStore) {
	counted := &countingStore{Store: storetest.NewMemory(bubbleClock{time.Now()})}
	waiter := store.NewWaiter(counted, options)
	t.Cleanup(waiter.Close)
	return waiter, counted
}

var waitKey = store.Key{Namespace: store.DefaultNamespace, ID: "order-1"}

func claimWaiting(attempt string, wait time.Duration) store.ClaimRequest {
	return store.ClaimRequest{Key: waitKey, AttemptID: attempt, Lease: 10 * time.Second, Wait: wait}
}

func mustGrant(t *testing.T, s store.Store, req store.ClaimRequest) *store.Granted {
	t.Helper()
	answer, err := s.Claim(t.Context(), req)
	if err != nil || answer.Granted == nil {
		t.Fatalf("claim by %q: got %+v, %v; want granted", req.AttemptID, answer, err)
	}
	return answer.Granted
}

func mustComplete(t *testing.T, s store.Store, attempt string, fence int64) {
	t.Helper()
	_, err := s.Complete(t.Context(), store.CompleteRequest{
		Key: waitKey, AttemptID: attempt, Fence: fence, Outcome: &store.Outcome{Body: []byte("receipt")},
	})
	if err != nil {
		t.Fatalf("complete: %v", err)
	}
}

func TestManyWaitersShareOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 5000
		waiter, counted := newWaiter(t, store.WaiterOptions{})
		grant := mustGrant(t, waiter, claimWaiting("holder", 0))
		counted.claims.Store(0)

		var wg sync.WaitGroup
		var replayed atomic.Int64
		for i := range waiters {
			wg.Go(func() {
				answer, err := waiter.Claim(t.Context(), claimWaiting(fmt.Sprint("waiter-", i), time.Minute))
				if err != nil || answer.Completed == nil || string(answer.Completed.Outcome.Body) != "receipt" {
					t.Errorf("waiter %d: got %+v, %v; want the outcome", i, answer, err)
					return
				}
				replayed.Add(1)
			})
		}
		time.Sleep(5 * time.Second) // the bubble's clock
		synctest.Wait()
		if got := waiter.Waiting(); got != waiters {
			t.Errorf("%d wait, want %d", got, waiters)
		}
		if got := counted.lookups.Load(); got < 4 || got > 11 {
			t.Errorf("%d lookups in 5 s, want one poll every 0.5 to 1 s however many wait", got)
		}
		settled := time.Now()
		mustComplete(t, waiter, "holder", grant.Fence)
		wg.Wait()
		if late := time.Since(settled); late > time.Second {
			t.Errorf("the last answer came %v after completion, want within 1 s", late)
		}
		if got := replayed.Load(); got != waiters {
			t.Errorf("%d got the outcome, want %d", got, waiters)
		}
		if got := counted.claims.Load(); got != 2*waiters {
			t.Errorf("%d claims reached the store, want two a waiter (%d)", got, 2*waiters)
		}
		if got := waiter.Waiting(); got != 0 {
			t.Errorf("%d still wait, want none", got)
		}
	})
}

// Waits that end together ask the store nothing at their end, are answered with the lease as
// it is then, and the earlier before their deadline the more there are.
func TestManyWaitersEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters, left = 5000, 5 * time.Second
		waiter, counted := newWaiter(t, store.WaiterOptions{})
		grant := mustGrant(t, waiter, claimWaiting("holder", 0))
		counted.claims.Store(0)
		began := time.Now()
		renewedTo := began.Add(2*time.Second + 30*time.Second)
		time.AfterFunc(2*time.Second, func() {
			_, err := counted.Renew(t.Context(), store.RenewRequest{
				Key: waitKey, AttemptID: "holder", Fence: grant.Fence, Lease: 30 * time.Second,
			})
			if err != nil {
				t.Errorf("renew: %v", err)
			}
		})
		ctx, cancel := context.WithDeadline(t.Context(), began.Add(left))
		defer cancel()

		var mu sync.Mutex
		answered := map[time.Duration]int{}
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				answer, err := waiter.Claim(ctx, claimWaiting(fmt.Sprint("waiter-", i), time.Minute))
				took := time.Since(began)
				if err != nil || answer.InProgress == nil {
					t.Errorf("waiter %d: got %+v, %v; want in progress", i, answer, err)
					return
				}
				want := store.InProgress{LeaseExpiresAt: renewedTo.UTC(), LeaseRemaining: time.Until(renewedTo), RetryAfter: time.Second}
				if *answer.InProgress != want {
					t.Errorf("waiter %d: got %+v after %v, want %+v", i, *answer.InProgress, took, want)
				}
				mu.Lock()
				defer mu.Unlock()
				answered[took]++
			})
		}
		wg.Wait()
		want := map[time.Duration]int{4900 * time.Millisecond: 249, left - 100*time.Millisecond - left/3: 751}
		for more := range time.Duration(16) {
			want[left-(more+2)*100*time.Millisecond] = 250
		}
		if !maps.Equal(answered, want) {
			t.Errorf("answered by time %v, want %v", answered, want)
		}
		if got := counted.claims.Load(); got != waiters {
			t.Errorf("%d claims reached the store, want one a waiter (%d)", got, waiters)
		}
		if got := counted.lookups.Load(); got < 4 || got > 10 {
			t.Errorf("%d lookups in 5 s, want one poll every 0.5 to 1 s however many wait", got)
		}
	})
}

// A lease that a poll saw renewed is not asked about again before half a second, but at its
// end at once.
func TestPollComesAtTheEndOfARenewedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, counted := newWaiter(t, store.WaiterOptions{Jitter: func() float64 { return 0.999 }})
		grant := mustGrant(t, waiter, claimWaiting("holder", 0))
		began := time.Now()
		time.AfterFunc(9*time.Second, func() {
			_, _ = counted.Renew(t.Context(), store.RenewRequest{
				Key: waitKey, AttemptID: "holder", Fence: grant.Fence, Lease: 5300 * time.Millisecond,
			})
		})
		answer, err := waiter.Claim(t.Context(), claimWaiting("waiter", time.Minute))
		if took := time.Since(began); err != nil || answer.Granted == nil || took != 14301*time.Millisecond {
			t.Errorf("got %+v, %v after %v; want granted a millisecond after the lease end at 14.3 s", answer, err, took)
		}
	})
}

// A wait that ends before the poll at the lease's end is told that nothing is left of it.
func TestWaitEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, _ := newWaiter(t, store.WaiterOptions{})
		mustGrant(t, waiter, claimWaiting("holder", 0))
		answer, err := waiter.Claim(t.Context(), claimWaiting("waiter", 10*time.Second+500*time.Microsecond))
		want := store.InProgress{LeaseExpiresAt: time.Now().Add(-500 * time.Microsecond).UTC()}
		if err != nil || answer.InProgress == nil || *answer.InProgress != want {
			t.Errorf("got %+v, %v; want %+v", answer.InProgress, err, want)
		}
	})
}

// lostStore cannot be asked where a key stands.
type lostStore struct {
	store.Store
	lookups atomic.Int64
}

func (s *lostStore) Lookup(context.Context, store.LookupRequest) (store.LookupAnswer, error) {
	s.lookups.Add(1)
	return store.LookupAnswer{}, store.ErrUnavailable
}

// A store that cannot answer is not asked faster, also once the lease that was known is over.
func TestPollsOfALostStoreStaySlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := &lostStore{Store: storetest.NewMemory(bubbleClock{time.Now()})}
		waiter := store.NewWaiter(lost, store.WaiterOptions{})
		defer waiter.Close()
		mustGrant(t, waiter, claimWaiting("holder", 0))
		answer, err := waiter.Claim(t.Context(), claimWaiting("waiter", 20*time.Second))
		if err != nil || answer.InProgress == nil {
			t.Errorf("got %+v, %v; want in progress", answer, err)
		}
		if got := lost.lookups.Load(); got < 20 || got > 41 {
			t.Errorf("%d lookups in 20 s, want one every 0.5 to 1 s", got)
		}
	})
}

func TestWaitSeesWhatSettlesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, counted := newWaiter(t, store.WaiterOptions{})
		grant := mustGrant(t, counted, claimWaiting("holder", 0))
		time.AfterFunc(3*time.Second, func() { mustComplete(t, counted.Store, "holder", grant.Fence) })
		began := time.Now()
		answer, err := waiter.Claim(t.Context(), claimWaiting("waiter", time.Minute))
		if err != nil || answer.Completed == nil {
			t.Fatalf("got %+v, %v; want the outcome", answer, err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("answered after %v, want within 1 s of the completion at 3 s", took)
		}
	})
}

// settlingStore completes the key right after the waiter was told that it is in progress.
type settlingStore struct {
	store.Store
	settle func()
}

func (s *settlingStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := s.Store.Claim(ctx, req)
	if answer.InProgress != nil {
		s.settle()
	}
	return answer, err
}

func TestWaitMissesNothingThatSettlesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settling := &settlingStore{Store: storetest.NewMemory(bubbleClock{time.Now()})}
		waiter := store.NewWaiter(settling, store.WaiterOptions{})
		defer waiter.Close()
		grant := mustGrant(t, waiter, claimWaiting("holder", 0))
		settling.settle = func() { mustComplete(t, waiter, "holder", grant.Fence) }
		began := time.Now()
		answer, err := waiter.Claim(t.Context(), claimWaiting("waiter", time.Minute))
		if err != nil || answer.Completed == nil || time.Since(began) != 0 {
			t.Errorf("got %+v, %v after %v; want the outcome at once", answer, err, time.Since(began))
		}
	})
}

func TestWaitSeesTheLeaseEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, _ := newWaiter(t, store.WaiterOptions{Jitter: func() float64 { return 0.999 }})
		mustGrant(t, waiter, claimWaiting("dead", 0))
		time.Sleep(9600 * time.Millisecond)
		began := time.Now()
		answer, err := waiter.Claim(t.Context(), claimWaiting("waiter", time.Minute))
		if took := time.Since(began); err != nil || answer.Granted == nil || took != 401*time.Millisecond {
			t.Errorf("got %+v, %v after %v; want granted a millisecond after the 400 ms that were left", answer, err, took)
		}
	})
}

// countedStore says how long it had the request, as a server does; of a grant of its own.
type countedStore struct {
	store.Store
	heldFor time.Duration
}

func (s *countedStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := s.Store.Claim(ctx, req)
	if answer.Granted != nil {
		answer.Granted.HeldFor = s.heldFor
	}
	return answer, err
}

// A wait is not a part of the lease: the grant says how long the request was held, and what
// counted from earlier on stays.
func TestGrantHasTheWait(t *testing.T) {
	for _, test := range []struct{ told, want time.Duration }{
		{0, 39 * time.Second},
		{time.Second, 39 * time.Second},
		{40 * time.Second, 40 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			counted := &countedStore{Store: storetest.NewMemory(bubbleClock{time.Now()})}
			waiter := store.NewWaiter(counted, store.WaiterOptions{})
			defer waiter.Close()
			holder := claimWaiting("holder", 5*time.Second) // nobody holds it: no wait
			holder.Lease = 5 * time.Minute
			grant := mustGrant(t, waiter, holder)
			if grant.HeldFor != 0 {
				t.Errorf("held for %v before a grant at once, want 0", grant.HeldFor)
			}
			counted.heldFor = test.told
			time.AfterFunc(39*time.Second, func() {
				_, err := waiter.Release(t.Context(), store.ReleaseRequest{
					Key: waitKey, AttemptID: "holder", Fence: grant.Fence, Effect: store.EffectNone,
				})
				if err != nil {
					t.Errorf("release: %v", err)
				}
			})
			got := mustGrant(t, waiter, claimWaiting("waiter", time.Minute))
			if got.HeldFor != test.want || got.LeaseRemaining != 10*time.Second {
				t.Errorf("the store says %v: held for %v with %v remaining, want %v with 10 s", test.told, got.HeldFor, got.LeaseRemaining, test.want)
			}
		})
	}
}

func TestWaitTakesOverAfterLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, _ := newWaiter(t, store.WaiterOptions{})
		mustGrant(t, waiter, claimWaiting("dead", 0))
		began := time.Now()
		var grants, inProgress atomic.Int64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				answer, err := waiter.Claim(t.Context(), claimWaiting(fmt.Sprint("stealer-", i), 15*time.Second))
				switch {
				case err != nil:
					t.Errorf("stealer %d: %v", i, err)
				case answer.Granted != nil:
					grants.Add(1)
					if took := time.Since(began); took < 10*time.Second || took > 11*time.Second || !answer.Granted.Unsettled {
						t.Errorf("granted after %v, unsettled %v; want the lease of 10 s + at most 1 s, unsettled", took, answer.Granted.Unsettled)
					}
				case answer.InProgress != nil:
					inProgress.Add(1)
				}
			})
		}
		wg.Wait()
		if grants.Load() != 1 || inProgress.Load() != 19 {
			t.Errorf("%d granted and %d in progress, want 1 and 19", grants.Load(), inProgress.Load())
		}
	})
}

// Who waits for a key of which a lease may be forgotten is woken when that one has ended, and not again
// and again before.
func TestWaitSeesTheEndOfALeaseThatWasForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, counted := newWaiter(t, store.WaiterOptions{})
		mustGrant(t, waiter, claimWaiting("dead", 0))
		begun, err := counted.Store.(store.Recovery).BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: time.Now(), Reason: "restored"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(store.MaxLease - time.Minute)
		counted.claims.Store(0)
		var wg sync.WaitGroup
		var granted atomic.Int64
		for i := range 10 {
			wg.Go(func() {
				answer, err := waiter.Claim(t.Context(), claimWaiting(fmt.Sprint("next-", i), 62*time.Second))
				if err != nil || answer.Completed != nil {
					t.Errorf("%+v, %v", answer, err)
				} else if answer.Granted != nil {
					granted.Add(1)
					if late := time.Since(begun.Now.Add(store.MaxLease)); late < 0 || late > 10*time.Millisecond || !answer.Granted.Unsettled {
						t.Errorf("granted %v late: %+v", late, answer.Granted)
					}
				}
			})
		}
		wg.Wait()
		if granted.Load() != 1 || counted.claims.Load() > 3*10 {
			t.Errorf("%d were granted, by %d claims", granted.Load(), counted.claims.Load())
		}
	})
}

func TestWaitEndsBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, _ := newWaiter(t, store.WaiterOptions{})
		mustGrant(t, waiter, claimWaiting("holder", 0))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		answer, err := waiter.Claim(ctx, claimWaiting("waiter", time.Minute))
		if err != nil || answer.InProgress == nil {
			t.Fatalf("got %+v, %v; want in progress before the deadline", answer, err)
		}
		if took := time.Since(began); took != 1900*time.Millisecond {
			t.Errorf("answered after %v, want 1.9 s of the 2 s", took)
		}
		if want := 8100 * time.Millisecond; answer.InProgress.LeaseRemaining != want {
			t.Errorf("lease remaining %v, want %v: the answer must be fresh", answer.InProgress.LeaseRemaining, want)
		}
	})
}

func TestCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, _ := newWaiter(t, store.WaiterOptions{})
		mustGrant(t, waiter, claimWaiting("holder", 0))
		began := time.Now()
		time.AfterFunc(time.Second, waiter.Close)
		for _, attempt := range []string{"waiting", "late"} {
			answer, err := waiter.Claim(t.Context(), claimWaiting(attempt, time.Minute))
			if err != nil || answer.InProgress == nil {
				t.Errorf("%s: got %+v, %v; want in progress", attempt, answer, err)
			} else if got := answer.InProgress.LeaseRemaining; got != 9*time.Second {
				t.Errorf("%s: lease remaining %v, want the 9 s that are left", attempt, got)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("both were answered after %v, want 1 s: the one that waited at Close, the later one at once", took)
		}
	})
}

func TestTooManyWaitersAreAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiter, _ := newWaiter(t, store.WaiterOptions{MaxWaiting: 1})
		mustGrant(t, waiter, claimWaiting("holder", 0))
		go func() { _, _ = waiter.Claim(t.Context(), claimWaiting("first", 5*time.Second)) }()
		synctest.Wait()
		began := time.Now()
		answer, err := waiter.Claim(t.Context(), claimWaiting("second", 5*time.Second))
		if err != nil || answer.InProgress == nil || time.Since(began) != 0 {
			t.Errorf("got %+v, %v after %v; want in progress at once", answer, err, time.Since(began))
		}
	})
}
