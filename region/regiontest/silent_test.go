package regiontest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// clientPatience is enough for a Go client to leave a silent way and to be told by the other one
// that the home cannot be reached, and not for a second time to be told so after that.
const clientPatience = 1900 * time.Millisecond

// A Go client that goes straight to a home is not worse off than one that asks its own region's
// server, when the way there falls silent: it is told that the home cannot be reached, and soon.
func TestAGoClientLeavesASilentWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes(), Delay: 60 * time.Millisecond})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap")}
	w.create("eu", namespaces...)
	w.placed(namespaces...)
	w.learn(namespaces)
	for _, p := range partitions(stress(t) > 0) {
		w.begin(p)
		var probes sync.WaitGroup
		for _, from := range allRegions {
			for _, to := range allRegions {
				if from != to && (from == p.region || to == p.region) {
					probes.Go(func() { w.clientUnreachable(p, from, to) })
				}
			}
		}
		probes.Wait()
		w.Heal()
		for _, from := range allRegions {
			for _, to := range allRegions {
				w.straight(from, to)
			}
		}
	}
}

// straight waits until a Go client goes straight to a home.
func (w *world) straight(from, to string) {
	w.t.Helper()
	within(w.t, 20*time.Second, "the client in "+from+" goes straight to "+to, func() error {
		got, _, err := w.claim(w.learned[from], w.fresh(homeOf(to)), "a")
		if err == nil && got.Served.Forwarded {
			err = errNotYet
		}
		return err
	})
}

// clientUnreachable has a Go client ask twice for a home beyond a partition.
func (w *world) clientUnreachable(p partition, from, to string) {
	for n := range 2 {
		ctx, cancel := context.WithTimeout(w.t.Context(), clientPatience)
		begun := time.Now()
		_, err := w.learned[from].Claim(ctx, store.ClaimRequest{Key: w.fresh(homeOf(to)), AttemptID: "a"})
		cancel()
		if !errors.Is(err, store.ErrHomeUnreachable) {
			w.t.Errorf("%s: claim %d of a Go client in %s for a home in %s got %v after %v; want that it is unreachable", p, n+1, from, to, err, time.Since(begun))
		}
	}
}
