package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// renewStore answers the renewals of a test.
type renewStore struct {
	*faultyStore
	heldFor time.Duration // of grants
	renew   func(ctx context.Context, try int) (store.RenewAnswer, error)
	tries   atomic.Int64
}

func (s *renewStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := s.faultyStore.Claim(ctx, req)
	if err == nil && answer.Granted != nil {
		answer.Granted.HeldFor = s.heldFor
	}
	return answer, err
}

func (s *renewStore) Renew(ctx context.Context, _ store.RenewRequest) (store.RenewAnswer, error) {
	return s.renew(ctx, int(s.tries.Add(1)))
}

// holding has a function that holds a lease of 10 s, which a store renews as it is told to.
func holding(t *testing.T, s *renewStore, fn func(ctx context.Context, t *testing.T, a *client.Attempt)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.faultyStore = newStore(t)
		_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
			fn(ctx, t, a)
			return "", nil
		}, client.Lease(10*time.Second))
		if err != nil {
			t.Error(err)
		}
	})
}

// lasts checks how long the context lasts.
func lasts(ctx context.Context, t *testing.T, want time.Duration) {
	t.Helper()
	start := time.Now()
	<-ctx.Done()
	if took := time.Since(start); took != want || !errors.Is(context.Cause(ctx), client.ErrLeaseLost) {
		t.Errorf("lasted %v, want %v; cause %v", took, want, context.Cause(ctx))
	}
}

func renewed(remaining time.Duration) (store.RenewAnswer, error) {
	return store.RenewAnswer{LeaseRemaining: remaining}, nil
}

// The deadline is the instant of sending, and what the answer says, less a tenth.
func TestDeadlineOfALease(t *testing.T) {
	s := &renewStore{heldFor: time.Second}
	s.renew = func(_ context.Context, try int) (store.RenewAnswer, error) {
		if try == 1 {
			return store.RenewAnswer{LeaseRemaining: 30 * time.Second, HeldFor: 2 * time.Second}, nil
		}
		return renewed(time.Millisecond) // never shortens
	}
	holding(t, s, func(ctx context.Context, t *testing.T, a *client.Attempt) {
		start := time.Now()
		left := func() time.Duration { return a.Deadline().Sub(start) }
		if left() != 10*time.Second {
			t.Errorf("granted until %v", left())
		}
		time.Sleep(4 * time.Second) // a third of 10 s, when it is renewed
		if got := left() - 10*time.Second/3; got < 31*time.Second || got > 31*time.Second+time.Millisecond {
			t.Errorf("renewed until %v", left())
		}
		before := a.Deadline()
		for s.tries.Load() < 3 {
			time.Sleep(time.Second)
		}
		if a.Deadline() != before || ctx.Err() != nil {
			t.Errorf("until %v, then %v", before, a.Deadline())
		}
	})
}

// A renewal that hangs, or fails for now, is sent again in time.
func TestRenewalsThatFail(t *testing.T) {
	for name, failing := range map[string]func(context.Context) error{
		"hangs":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"fails":  func(context.Context) error { return store.ErrUnavailable },
		"refuse": func(context.Context) error { return &store.Error{Sentinel: store.ErrOverloaded} },
	} {
		t.Run(name, func(t *testing.T) {
			s := &renewStore{}
			s.renew = func(ctx context.Context, try int) (store.RenewAnswer, error) {
				if try%3 != 0 {
					return store.RenewAnswer{}, failing(ctx)
				}
				return renewed(10 * time.Second)
			}
			holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) {
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("lost: %v", context.Cause(ctx))
				}
			})
			if s.tries.Load() > 60 {
				t.Errorf("%d renewals in a minute", s.tries.Load())
			}
		})
	}
}

// A lease that is not renewed lasts to its deadline, and no longer, however it is refused
// for now; one that another attempt has ended is over at once.
func TestHowLongALeaseLasts(t *testing.T) {
	for _, test := range []struct {
		renew func(context.Context) error
		want  time.Duration
	}{
		{func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 9 * time.Second},
		{func(context.Context) error { return store.ErrUnavailable }, 9 * time.Second},
		{func(context.Context) error { return store.ErrAttemptTooLong }, 9 * time.Second},
		{func(context.Context) error { return store.ErrStaleFence }, 3 * time.Second},
		{func(context.Context) error { return store.ErrLeaseExpired }, 3 * time.Second},
		{func(context.Context) error { return store.ErrKeyNotFound }, 3 * time.Second},
	} {
		s := &renewStore{renew: func(ctx context.Context, _ int) (store.RenewAnswer, error) {
			return store.RenewAnswer{}, test.renew(ctx)
		}}
		holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) { lasts(ctx, t, test.want) })
	}
}

// A refusal that says nothing about the attempt takes nothing away: the lease lasts to its
// deadline, and goes on if a renewal is answered before.
func TestRefusedRenewals(t *testing.T) {
	for _, refusal := range notAboutTheAttempt() {
		s := &renewStore{renew: func(context.Context, int) (store.RenewAnswer, error) { return store.RenewAnswer{}, refusal }}
		holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) { lasts(ctx, t, 9*time.Second) })
		if tries := s.tries.Load(); tries < 4 || tries > 8 {
			t.Errorf("%v: %d tries of one renewal", refusal, tries)
		}
		s = &renewStore{renew: func(_ context.Context, try int) (store.RenewAnswer, error) {
			if try%2 == 1 {
				return store.RenewAnswer{}, refusal
			}
			return renewed(10 * time.Second)
		}}
		holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) {
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Errorf("%v: lost: %v", refusal, context.Cause(ctx))
			}
		})
	}
}

// The server's hint is kept to.
func TestRenewalsKeepToTheHint(t *testing.T) {
	s := &renewStore{renew: func(context.Context, int) (store.RenewAnswer, error) {
		return store.RenewAnswer{}, &store.Error{Sentinel: store.ErrOverloaded, RetryAfter: 4 * time.Second}
	}}
	holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) { lasts(ctx, t, 9*time.Second) })
	if s.tries.Load() != 2 { // after 3 s and 7 s
		t.Errorf("%d tries", s.tries.Load())
	}
}

// A renewal may take all the time that is left: a store that is far away renews a short lease.
func TestSlowRenewals(t *testing.T) {
	s := &renewStore{}
	s.renew = func(ctx context.Context, _ int) (store.RenewAnswer, error) {
		select {
		case <-time.After(550 * time.Millisecond):
			return renewed(time.Second)
		case <-ctx.Done():
			return store.RenewAnswer{}, ctx.Err()
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s.faultyStore = newStore(t)
		_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
			if time.Sleep(time.Second); ctx.Err() != nil { // the store's lease, once renewed
				t.Errorf("lost: %v", context.Cause(ctx))
			}
			return "", nil
		}, client.Lease(time.Second))
		if err != nil {
			t.Error(err)
		}
	})
}

// A store that does not care for contexts keeps nobody acting after the deadline.
func TestRenewalsThatIgnoreTheirContext(t *testing.T) {
	s := &renewStore{renew: func(context.Context, int) (store.RenewAnswer, error) {
		time.Sleep(2 * time.Minute)
		return renewed(10 * time.Second)
	}}
	holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) { lasts(ctx, t, 9*time.Second) })
}

// A store that panics in a renewal ends neither the process nor the lease.
func TestRenewalsThatPanic(t *testing.T) {
	s := &renewStore{renew: func(_ context.Context, try int) (store.RenewAnswer, error) {
		if try == 1 {
			panic("oops")
		}
		return renewed(time.Minute)
	}}
	holding(t, s, func(ctx context.Context, t *testing.T, _ *client.Attempt) {
		if time.Sleep(20 * time.Second); ctx.Err() != nil {
			t.Errorf("lost: %v", context.Cause(ctx))
		}
	})
}

// A renewal that is under way when the attempt ends is waited for, and none comes after it.
func TestNoRenewalAfterTheEnd(t *testing.T) {
	running := false
	s := &renewStore{}
	s.renew = func(ctx context.Context, _ int) (store.RenewAnswer, error) {
		running = true
		<-ctx.Done()
		time.Sleep(time.Second)
		running = false
		return renewed(10 * time.Second)
	}
	var acting context.Context
	holding(t, s, func(ctx context.Context, _ *testing.T, _ *client.Attempt) {
		acting = ctx
		time.Sleep(4 * time.Second)
	})
	if running || s.tries.Load() != 1 || acting.Err() == nil || errors.Is(context.Cause(acting), client.ErrLeaseLost) {
		t.Errorf("running %v, %d renewals, cause %v", running, s.tries.Load(), context.Cause(acting))
	}
}

// Renewals go on when the caller has gone, as what it asked for does.
func TestRenewalsOutliveTheCaller(t *testing.T) { synctest.Test(t, testRenewalsOutliveTheCaller) }

func testRenewalsOutliveTheCaller(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := client.Do(ctx, s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
		cancel()
		time.Sleep(time.Minute)
		if s.inspect(t, orderKey).Record.Lapsed(time.Now()) {
			t.Error("lapsed")
		}
		return "", nil
	}, client.Lease(10*time.Second))
	if err != nil {
		t.Error(err)
	}
}

// What a function leaves running ends with its attempt.
func TestTheContextEndsWithTheAttempt(t *testing.T) {
	synctest.Test(t, testTheContextEndsWithTheAttempt)
}

func testTheContextEndsWithTheAttempt(t *testing.T) {
	var acting context.Context
	_, err := client.Do(t.Context(), newStore(t), orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
		acting = ctx
		return "", nil
	})
	if err != nil || context.Cause(acting) != context.Canceled { //nolint:errorlint // not one that wraps it
		t.Errorf("%v, cause %v", err, context.Cause(acting))
	}
}
