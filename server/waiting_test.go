package server

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// counting counts what reaches the store.
func counting() (*hooked, *[operations]atomic.Int64) {
	var counts [operations]atomic.Int64
	return &hooked{newMemory(), func(_ context.Context, op operation) error {
		counts[op].Add(1)
		return nil
	}}, &counts
}

// Case 19 with one server: 200 callers on one key.
func TestOneKeyOneGrant(t *testing.T) {
	const callers, connections = 200, 3
	r := newRig(t, newMemory())
	var clients [connections]*client.Client
	for i := range clients {
		clients[i] = r.client()
	}
	outcome := &store.Outcome{Body: []byte("the receipt"), BodyType: "text/plain"}
	var grants, others atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			c, attempt := clients[i%connections], fmt.Sprint("attempt-", i)
			answer, err := c.Claim(t.Context(), store.ClaimRequest{Key: testKey, AttemptID: attempt, Wait: time.Minute * time.Duration(i%2)})
			switch {
			case err != nil:
				t.Errorf("caller %d: %v", i, err)
			case answer.Granted != nil:
				grants.Add(1)
				_, err := c.Complete(t.Context(), store.CompleteRequest{
					Key: testKey, AttemptID: attempt, Fence: answer.Granted.Fence, Outcome: outcome,
				})
				if err != nil {
					t.Errorf("the holder: %v", err)
				}
			case answer.Completed != nil && bytes.Equal(answer.Completed.Outcome.Body, outcome.Body):
				others.Add(1)
			case answer.InProgress != nil && i%2 == 0: // it did not want to wait
				others.Add(1)
			default:
				t.Errorf("caller %d got %+v", i, answer)
			}
		})
	}
	all.Wait()
	if grants.Load() != 1 || others.Load() != callers-1 {
		t.Errorf("%d grants and %d others, want 1 and %d", grants.Load(), others.Load(), callers-1)
	}
}

// Case 39: 5,000 callers wait on one key. In a bubble, where time passes only when all
// wait.
func TestManyWaitersOneWatch(t *testing.T) {
	const waiters, connections = 5000, 3
	synctest.Test(t, func(t *testing.T) {
		backend, counts := counting()
		r := newRig(t, backend)
		defer r.close()
		var clients [connections]*client.Client
		for i := range clients {
			clients[i] = r.client()
		}
		fence := grant(t, clients[0], testKey, "holder")
		start := time.Now()
		const workTime = 20 * time.Second
		outcome := &store.Outcome{Body: []byte("the receipt"), Trailer: []store.MetadataEntry{{Name: "a", Value: []byte{0xff}}}}
		var completed, inProgress atomic.Int64
		var all sync.WaitGroup
		for i := range waiters {
			all.Go(func() {
				// Every fifth has less time than the work takes.
				deadline := time.Minute
				if i%5 == 0 {
					deadline = 10 * time.Second
				}
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				answer, err := clients[i%connections].Claim(ctx, store.ClaimRequest{
					Key: testKey, AttemptID: fmt.Sprint("waiter-", i), Wait: store.MaxWait,
				})
				took := time.Since(start)
				switch {
				case err != nil || took >= deadline:
					t.Errorf("waiter %d after %v of %v: %v", i, took, deadline, err)
				case answer.Completed != nil:
					completed.Add(1)
					if answer.Completed.Outcome.Digest() != outcome.Digest() || took < workTime || took > workTime+time.Second {
						t.Errorf("waiter %d after %v: %+v", i, took, answer.Completed)
					}
				case answer.InProgress != nil:
					inProgress.Add(1)
				default:
					t.Errorf("waiter %d got %+v", i, answer)
				}
			})
		}
		time.Sleep(workTime)
		if got := r.value("idemd_waiting_claims"); got != waiters*4/5 {
			t.Errorf("%v claims wait, want %d", got, waiters*4/5)
		}
		// One watch: at most two lookups a second, however many wait.
		if lookups := counts[opLookup].Load(); lookups < 10 || lookups > 45 {
			t.Errorf("%d lookups in %v", lookups, workTime)
		}
		_, err := clients[1].Complete(t.Context(), store.CompleteRequest{Key: testKey, AttemptID: "holder", Fence: fence, Outcome: outcome})
		if err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if completed.Load() != waiters*4/5 || inProgress.Load() != waiters/5 {
			t.Errorf("%d completed and %d in progress", completed.Load(), inProgress.Load())
		}
		// Each asked once when it came and once when its wait was over.
		if claims := counts[opClaim].Load(); claims > 2*waiters+1 {
			t.Errorf("%d claims reached the store", claims)
		}
	})
}

// slow takes time on both sides of the decision.
type slow struct {
	store.Backend
	before, after time.Duration
}

func (s slow) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	time.Sleep(s.before)
	answer, err := s.Backend.Claim(ctx, req)
	if answer.Granted != nil {
		answer.Granted.HeldFor = s.before // as a backend says that knows
	}
	time.Sleep(s.after)
	return answer, err
}

func (s slow) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	time.Sleep(s.before)
	answer, err := s.Backend.Renew(ctx, req)
	time.Sleep(s.after)
	return answer, err
}

// What comes after the decision must not be in HeldFor: a holder would act that much
// longer than its lease.
func TestHeldForEndsAtTheDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, slow{newMemory(), 30 * time.Millisecond, 700 * time.Millisecond})
		defer r.close()
		c := r.client()
		answer, err := c.Claim(t.Context(), store.ClaimRequest{Key: testKey, AttemptID: "a"})
		if err != nil || answer.Granted.HeldFor != 30*time.Millisecond {
			t.Fatalf("Claim: %+v, %v", answer.Granted, err)
		}
		renewed, err := c.Renew(t.Context(), store.RenewRequest{Key: testKey, AttemptID: "a", Fence: answer.Granted.Fence})
		if err != nil || renewed.HeldFor != 0 {
			t.Errorf("Renew: %+v, %v", renewed, err)
		}
	})
}

// A claim that waited was in the server's hands all that time.
func TestHeldForHasTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemory())
		defer r.close()
		c := r.client()
		fence := grant(t, c, testKey, "a")
		granted := make(chan *store.Granted, 1)
		go func() {
			answer, err := c.Claim(t.Context(), store.ClaimRequest{Key: testKey, AttemptID: "b", Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			granted <- answer.Granted
		}()
		time.Sleep(7 * time.Second)
		_, err := c.Release(t.Context(), store.ReleaseRequest{Key: testKey, AttemptID: "a", Fence: fence, Effect: store.EffectNone})
		if err != nil {
			t.Fatal(err)
		}
		if g := <-granted; g == nil || g.HeldFor != 7*time.Second {
			t.Errorf("granted %+v", g)
		}
	})
}

// A wait that is longer than the lease leaves the holder all of the lease, less the margin,
// and no more.
func TestWaitLeavesTheWholeLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemory())
		defer r.close()
		c := r.client()
		fence := grant(t, c, testKey, "a")
		time.AfterFunc(7*time.Second, func() {
			_, err := c.Release(t.Context(), store.ReleaseRequest{Key: testKey, AttemptID: "a", Fence: fence, Effect: store.EffectNone})
			if err != nil {
				t.Error(err)
			}
		})
		got, err := client.Do(t.Context(), c, testKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
			if left := time.Until(a.Deadline()); left != 4500*time.Millisecond {
				t.Errorf("%v left of a lease of 5 s, want 4.5 s", left)
			}
			return "charged", ctx.Err()
		}, client.Wait(time.Minute), client.Lease(5*time.Second))
		if err != nil || !got.Recorded {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
