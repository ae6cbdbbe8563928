package regiontest

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// The largest outcome needs no more round trips from afar than a small one, also among others.
func TestALargeOutcomeFromAfarCostsOneRoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes(), Delay: oneWay})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap")}
	w.create("eu", namespaces...)
	w.placed(namespaces...)
	w.learn(namespaces)
	outcome := &store.Outcome{Body: bytes.Repeat([]byte("x"), store.MaxOutcomeBytes)}
	for who, s := range map[string]store.Store{"by way of the server in us": w.bare["us"], "a Go client in us": w.learned["us"]} {
		for together, limit := range map[int]time.Duration{1: hopLimit, 16: hopLimit + busy} {
			var slowest []time.Duration
			for range samples {
				slowest = append(slowest, w.completes(s, homeOf("eu"), outcome, together))
			}
			t.Logf("%s, %d together: %v", who, together, slowest)
			if m := median(slowest); m < roundTrip || m >= limit {
				t.Errorf("%s: %d completions with the largest outcome took %v, want from %v to %v", who, together, slowest, roundTrip, limit)
			}
		}
	}
}

// completes ends keys together, and returns how long the slowest took.
func (w *world) completes(s store.Store, namespace string, outcome *store.Outcome, together int) time.Duration {
	w.t.Helper()
	requests := make([]store.CompleteRequest, together)
	each := func(do func(*store.CompleteRequest) error) (slowest time.Duration) {
		var callers sync.WaitGroup
		begun := time.Now()
		for i := range requests {
			callers.Go(func() {
				if err := do(&requests[i]); err != nil {
					w.t.Error(err)
				}
			})
		}
		callers.Wait()
		return time.Since(begun)
	}
	each(func(r *store.CompleteRequest) error {
		key := w.fresh(namespace)
		got, _, err := w.claim(s, key, "a")
		if err == nil {
			*r = store.CompleteRequest{Key: key, AttemptID: "a", Fence: got.Granted.Fence, Outcome: outcome}
		}
		return err
	})
	return each(func(r *store.CompleteRequest) error {
		_, err := s.Complete(w.t.Context(), *r)
		return err
	})
}
