package regiontest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// Several operators move one namespace to and fro and abandon moves, while regions die and are
// cut off. Afterwards it can be moved, everything can be settled, and no promise was broken.
func TestMovesAmidDeathsAndPartitions(t *testing.T) {
	t.Parallel()
	length := stress(t)
	if length == 0 {
		length = 6 * time.Second
	}
	seed := uint64(time.Now().UnixNano())
	w := newWorld(t, Plan{Placements: map[string]string{"moving": "prefix eu-=eu us-=us *=ap", "*": "spread eu us ap"}, Delay: 10 * time.Millisecond})
	w.create("eu", "moving")
	w.placed("moving", store.DefaultNamespace)
	c := w.crowd(4, "moving")
	rng := rand.New(rand.NewPCG(seed, 0))
	happened := map[string]int{}
	for begun := time.Now(); time.Since(begun) < length; {
		happened[w.harm(rng)]++
	}
	w.Heal()
	home := allRegions[rng.IntN(len(allRegions))]
	within(t, 2*moveWithin, "the namespace can be moved to "+home+" afterwards", func() error {
		for _, region := range allRegions { // what is under way is given up, or, if it is too late for that, ended
			if w.mover("moving", region, true).ends(moveWithin) != nil {
				_ = w.mover("moving", region, false).ends(moveWithin)
			}
		}
		return w.mover("moving", home, false).ends(moveWithin)
	})
	w.livesIn("moving", home)
	for _, from := range allRegions {
		w.grants(healedWithin, w.bare[from], from, "moving")
	}
	c.finish(t)
	t.Logf("seed %d: %v", seed, happened)
}

// harm does one thing that is bad for a move, and says what.
func (w *world) harm(rng *rand.Rand) string {
	w.t.Helper()
	region := allRegions[rng.IntN(len(allRegions))]
	pause := time.Duration(rng.IntN(600)) * time.Millisecond
	switch rng.IntN(6) {
	case 0:
		w.Kill(region)
		w.Restart(region)
		return "killed"
	case 1:
		w.begin(partition{region, rng.IntN(2) == 0, rng.IntN(2) == 0})
		idle(w.t, 2*pause)
		w.Heal()
		return "cut off"
	case 2:
		m := w.mover("moving", region, true)
		return fmt.Sprintf("abandoned: %t", m.ends(2*time.Second) == nil)
	case 3:
		m := w.mover("moving", region, false)
		idle(w.t, pause)
		m.kill()
		return "mover killed"
	case 4:
		w.mover("moving", region, false)
		idle(w.t, pause)
		return "mover left alone"
	}
	m := w.mover("moving", region, false)
	return fmt.Sprintf("moved: %t", m.ends(5*time.Second) == nil)
}
