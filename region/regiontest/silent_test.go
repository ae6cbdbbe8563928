package regiontest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// A Go client that goes straight to a home is not worse off than one that asks its own region's
// server, when the way there falls silent: it is told that the home cannot be reached, and soon.
func TestAGoClientLeavesASilentWay(t *testing.T) {
	t.Skip("KNOWN FAULT, NOT TESTED: a client that has learned the way to a home waits on it for its caller's whole deadline when that way falls silent")
	w := newWorld(t, Plan{Placements: threeHomes(), Delay: 60 * time.Millisecond})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap")}
	w.create("eu", namespaces...)
	w.placed(namespaces...)
	w.learn(namespaces)
	for _, p := range partitions(true) {
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
		healed := time.Now()
		for _, from := range allRegions {
			for _, to := range allRegions {
				w.grants(healedWithin+busy-time.Since(healed), w.learned[from], "a Go client in "+from, homeOf(to))
			}
		}
	}
}

// clientUnreachable has a Go client ask twice for a home beyond a partition.
func (w *world) clientUnreachable(p partition, from, to string) {
	for n := range 2 {
		ctx, cancel := context.WithTimeout(w.t.Context(), 4*time.Second)
		begun := time.Now()
		_, err := w.learned[from].Claim(ctx, store.ClaimRequest{Key: w.fresh(homeOf(to)), AttemptID: "a"})
		cancel()
		if !errors.Is(err, store.ErrHomeUnreachable) {
			w.t.Errorf("%s: claim %d of a Go client in %s for a home in %s got %v after %v; want that it is unreachable", p, n+1, from, to, err, time.Since(begun))
		}
	}
}
