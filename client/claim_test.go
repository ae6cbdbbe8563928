package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// farStore is far away: what it is asked, and its answer, take a time each way. What is on
// its way arrives although its sender has gone.
type farStore struct {
	*faultyStore
	oneWay time.Duration
	claims []store.ClaimRequest
}

func (s *farStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	s.claims = append(s.claims, req)
	deadline, bounded := ctx.Deadline()
	type result struct {
		answer store.ClaimAnswer
		err    error
	}
	answered := make(chan result, 1)
	go func() {
		time.Sleep(s.oneWay)
		ctx := context.WithoutCancel(ctx)
		if bounded { // it gives up at the deadline and not before, as a server does
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		answer, err := s.faultyStore.Claim(ctx, req)
		time.Sleep(s.oneWay)
		answered <- result{answer, err}
	}()
	select {
	case r := <-answered:
		return r.answer, r.err
	case <-ctx.Done():
		return store.ClaimAnswer{}, ctx.Err()
	}
}

// A store that is far away is not down: a call that may wait and may fail open does not act
// beside the one that holds the key.
func TestWaitFarAway(t *testing.T) {
	for _, failOpen := range []bool{true, false} {
		for _, oneWay := range []time.Duration{0, 10 * time.Millisecond, 45 * time.Millisecond, 120 * time.Millisecond} {
			for _, deadline := range []time.Duration{500 * time.Millisecond, 800 * time.Millisecond, 2500 * time.Millisecond, 0} {
				synctest.Test(t, func(t *testing.T) {
					s, events := &farStore{faultyStore: newStore(t), oneWay: oneWay}, &eventLog{}
					policy := client.Policy{FailOpen: failOpen, Wait: 2 * time.Second}
					guard := client.NewGuard(s, client.NoOwner(), client.Method(chargeMethod, policy), client.OnEvent(events.add))
					var runs atomic.Int64
					call := func(ctx context.Context) error {
						_, err := guardedCall(ctx, guard, func() { runs.Add(1); time.Sleep(10 * time.Second) })
						return err
					}
					go func() { _ = call(context.Background()) }()
					time.Sleep(time.Second)
					events.take()
					ctx := t.Context()
					if deadline > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, deadline)
						defer cancel()
					}
					start := time.Now()
					refused(t, call(ctx), codes.Aborted, "KEY_IN_PROGRESS")
					equalKinds(t, events.take(), client.EventInProgress)
					if took := time.Since(start); runs.Load() != 1 || deadline == 0 && took < 2*time.Second {
						t.Errorf("%v each way, deadline %v: %d at once, after %v", oneWay, deadline, runs.Load(), took)
					}
					time.Sleep(time.Minute)
				})
			}
		}
	}
}

// guardedCall makes a call through a guard, without a server.
func guardedCall(ctx context.Context, guard *client.Guard, act func()) (any, error) {
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(client.MetadataKey, key1))
	return guard.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{}, &grpc.UnaryServerInfo{FullMethod: chargeMethod}, func(context.Context, any) (any, error) {
		act()
		return &testv1.ChargeResponse{}, nil
	})
}

// A claim that waited too long is asked about once more, without waiting, before a call
// acts unguarded; which it does if the store does not answer that either.
func TestFailOpenAsksOnceMore(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, events := &waitlessStore{faultyStore: newStore(t), down: down}, &eventLog{}
			policy := client.Policy{FailOpen: true, Wait: 10 * time.Second}
			guard := client.NewGuard(s, client.NoOwner(), client.Method(chargeMethod, policy), client.OnEvent(events.add))
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			ran := false
			start := time.Now()
			if _, err := guardedCall(ctx, guard, func() { ran = true }); err != nil || !ran || time.Since(start) > 3*time.Second {
				t.Errorf("%v, ran: %v, after %v", err, ran, time.Since(start))
			}
			if len(s.claims) != 2 || s.claims[0].Wait == 0 || s.claims[1].Wait != 0 || s.claims[0].AttemptID != s.claims[1].AttemptID {
				t.Errorf("claimed %+v", s.claims)
			}
			if down {
				equalKinds(t, events.take(), client.EventFailedOpen)
			} else {
				equalKinds(t, events.take(), client.EventGranted, client.EventRecorded)
			}
		})
	}
}

// waitlessStore does not answer claims that may wait, and none while it is down.
type waitlessStore struct {
	*faultyStore
	down   bool
	claims []store.ClaimRequest
}

func (s *waitlessStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	s.claims = append(s.claims, req)
	if s.down || req.Wait > 0 {
		<-ctx.Done()
		return store.ClaimAnswer{}, ctx.Err()
	}
	return s.faultyStore.Claim(ctx, req)
}

// A grant whose answer nobody got is given back: nobody acts under it, and neither the
// next caller nor a person has to find that out.
func TestUnansweredGrants(t *testing.T) {
	for name, cut := range map[string]time.Duration{"the answer is late": 150 * time.Millisecond, "the claim is late": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &farStore{faultyStore: newStore(t), oneWay: 100 * time.Millisecond}
				ctx, cancel := context.WithTimeout(t.Context(), cut)
				defer cancel()
				fn, runs := returns("paid", nil)
				if _, err := client.Do(ctx, s, orderKey, nil, fn, client.Hold()); err == nil || *runs != 0 {
					t.Errorf("%v, ran %d times", err, *runs)
				}
				if err := client.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				if rec := s.inspect(t, orderKey).Record; rec.State != store.StateReleased {
					t.Errorf("%+v", rec)
				}
				got, err := client.Do(t.Context(), s, orderKey, nil, func(_ context.Context, a *client.Attempt) (string, error) {
					if a.Unsettled {
						t.Error("told that somebody may have acted")
					}
					return "paid", nil
				}, client.Hold())
				if err != nil || got.Replayed {
					t.Errorf("afterwards: %+v, %v", got, err)
				}
			})
		})
	}
}

// lostStore loses its first answer to a Claim, and answers nothing for a while after that.
type lostStore struct {
	*faultyStore
	from time.Time
	away time.Duration
}

func (s *lostStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	first := s.from.IsZero()
	if first {
		s.from = time.Now()
	} else if time.Since(s.from) < s.away {
		return store.ClaimAnswer{}, errors.Join(store.ErrUnavailable, s.called("claim"))
	}
	answer, err := s.faultyStore.Claim(ctx, req)
	if first {
		return store.ClaimAnswer{}, store.ErrUnavailable
	}
	return answer, err
}

// It is given back also if the store is away for a while, and observed too, but not without
// end; a call that fails open acts, so nobody says that nothing happened.
func TestUnansweredGrantsLater(t *testing.T) {
	for _, test := range []struct {
		name  string
		away  time.Duration
		opts  []client.GuardOption
		state store.State
		runs  int
	}{
		{"soon", 0, nil, store.StateReleased, 0},
		{"later", 10 * time.Second, nil, store.StateReleased, 0},
		{"never", time.Hour, nil, store.StateInProgress, 0},
		{"observed", 10 * time.Second, []client.GuardOption{client.Observe()}, store.StateReleased, 1},
		{"fails open", 0, []client.GuardOption{client.Method(chargeMethod, client.Policy{FailOpen: true})}, store.StateInProgress, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs := &lostStore{faultyStore: newStore(t), away: test.away}, 0
				guard := client.NewGuard(s, append(test.opts, client.NoOwner())...)
				if _, err := guardedCall(t.Context(), guard, func() { runs++ }); (err == nil) != (runs == 1) {
					t.Error(err)
				}
				if err := client.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				key := store.Key{Namespace: "default", Scope: chargeMethod, ID: key1}
				if rec := s.inspect(t, key).Record; rec.State != test.state || runs != test.runs {
					t.Errorf("ran %d times; %+v", runs, rec)
				}
				if took := time.Since(s.from); took > store.DefaultLease || s.count("claim") > 8 {
					t.Errorf("%d claims in %v", s.count("claim"), took)
				}
			})
		})
	}
}

// What the store refused as not done is not claimed again.
func TestRefusedClaimsAreNotGivenBack(t *testing.T) {
	for _, refusal := range []error{store.ErrOverloaded, store.ErrQuota, store.ErrFingerprintMismatch, store.ErrKeyExpired} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			s.fail("claim", refusal)
			fn, _ := returns("", nil)
			if _, err := client.Do(t.Context(), s, orderKey, nil, fn); !errors.Is(err, refusal) {
				t.Error(err)
			}
			if err := client.Drain(t.Context()); err != nil || s.count("claim") != 1 {
				t.Errorf("%v, %d claims", err, s.count("claim"))
			}
		})
	}
}
