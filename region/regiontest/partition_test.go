package regiontest

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	// noticedWithin is how soon after a partition calls for homes beyond it are answered, and
	// atOnce how long each takes from then on. busy is what a busy machine adds.
	noticedWithin = time.Second
	atOnce        = 100 * time.Millisecond
	busy          = 400 * time.Millisecond
	// healedWithin is how soon after a partition everything is as before.
	healedWithin = 5 * time.Second
)

// partition is one region cut off.
type partition struct {
	region          string
	sends, receives bool // what of it is held; neither: its connections are refused
}

func (p partition) String() string {
	switch {
	case !p.sends && !p.receives:
		return p.region + " is refused"
	case p.sends && p.receives:
		return p.region + " is silent"
	case p.sends:
		return p.region + " is not heard"
	}
	return p.region + " does not hear"
}

func partitions(long bool) []partition {
	if !long {
		return []partition{{"eu", true, true}, {"us", true, false}, {"ap", false, true}}
	}
	var all []partition
	for _, region := range allRegions {
		all = append(all, partition{region, true, true}, partition{region, true, false}, partition{region, false, true}, partition{region, false, false})
	}
	return all
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	testPartitions(t, Loopback(), partitions(stress(t) > 0))
}

// TestPartitionsOfNamespaces is TestPartitions where a silent region's packets are lost.
func TestPartitionsOfNamespaces(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("network namespaces are NOT tested with -short")
	}
	cases := partitions(true)
	if stress(t) == 0 {
		cases = cases[:1]
	}
	testPartitions(t, namespacesOrSkip(t), cases)
}

func testPartitions(t *testing.T, ground Ground, cases []partition) {
	w := newWorld(t, Plan{Ground: ground, Placements: threeHomes(), Delay: 60 * time.Millisecond})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap"), "orders"}
	w.create("eu", namespaces...)
	w.placed(append(namespaces, store.DefaultNamespace)...)
	w.learn(namespaces[:3])
	c := w.crowd(4, append(namespaces, store.DefaultNamespace)...)
	length := stress(t)
	for begun := time.Now(); ; {
		for _, p := range cases {
			w.suffer(p)
		}
		if time.Since(begun) >= length {
			break
		}
	}
	c.finish(t)
}

// suffer has one partition come and go.
func (w *world) suffer(p partition) {
	w.t.Helper()
	w.begin(p)
	begun := time.Now()
	var probes sync.WaitGroup
	for _, from := range allRegions {
		for _, to := range allRegions {
			probes.Go(func() {
				if cut := from != to && (from == p.region || to == p.region); cut {
					w.unreachable(p, from, to, begun)
				} else {
					w.served(p, from, to)
				}
			})
		}
	}
	probes.Wait()
	w.Heal()
	healed := time.Now()
	for _, from := range allRegions {
		for _, to := range allRegions {
			w.grants(healedWithin+busy-time.Since(healed), w.bare[from], from, homeOf(to))
			w.grants(healedWithin+busy-time.Since(healed), w.learned[from], "a Go client in "+from, homeOf(to))
		}
	}
	w.t.Logf("%s: all is as before %v after it was healed", p, time.Since(healed))
}

func (w *world) begin(p partition) {
	w.t.Helper()
	switch {
	case !p.sends && !p.receives:
		w.Network.Cut(p.region)
	case p.sends && p.receives && w.Unplug(p.region):
	default:
		w.Network.Isolate(p.region, p.sends, p.receives)
	}
}

// unreachable checks that calls for a home beyond the partition are answered soon, and then at once.
func (w *world) unreachable(p partition, from, to string, begun time.Time) {
	noticed := time.Duration(0)
	for n := 0; n < 10; {
		got, took, err := w.claim(w.bare[from], w.fresh(homeOf(to)), "a")
		since := time.Since(begun)
		switch {
		case err == nil && got.Granted != nil && since < noticedWithin:
			continue // it was under way already, or has not been noticed
		case !errors.Is(err, store.ErrHomeUnreachable):
			w.t.Errorf("%s: %v later a claim from %s to %s got %+v, %v after %v; want that the home is unreachable", p, since, from, to, got, err, took)
			return
		case !strings.Contains(err.Error(), to):
			w.t.Errorf("%s: %q does not name %s", p, err, to)
		}
		if n == 0 {
			noticed = since
		}
		if limit := atOnce + busy; n > 0 && took > limit {
			w.t.Errorf("%s: claim %d from %s to %s took %v, want at most %v, as it is known by then: %v", p, n+1, from, to, took, limit, err)
		}
		n++
	}
	w.t.Logf("%s: noticed from %s to %s after %v", p, from, to, noticed)
	if noticed > noticedWithin+busy {
		w.t.Errorf("%s: the first answer from %s to %s came %v later, want at most %v", p, from, to, noticed, noticedWithin)
	}
}

// learn has a Go client in each region find the way to each home.
func (w *world) learn(namespaces []string) {
	w.t.Helper()
	w.learned = map[string]store.Store{}
	for _, from := range allRegions {
		c := w.Client(from)
		w.learned[from] = c
		for _, namespace := range namespaces {
			within(w.t, 10*time.Second, "the client in "+from+" knows the way to "+namespace, func() error {
				got, _, err := w.claim(c, w.fresh(namespace), "a")
				if err == nil && got.Served.Forwarded {
					err = errNotYet
				}
				return err
			})
		}
	}
}

// served checks that what the partition does not touch goes on.
func (w *world) served(p partition, from, to string) {
	var took []time.Duration
	for range 9 {
		got, d, err := w.claim(w.bare[from], w.fresh(homeOf(to)), "a")
		if err != nil || got.Granted == nil {
			w.t.Errorf("%s: a claim from %s to %s got %+v, %v; want granted, they are not cut off from each other", p, from, to, got, err)
			return
		}
		took = append(took, d)
	}
	limit := nearLimit
	if from != to {
		limit = hopLimit
	}
	if m := median(took); m > limit {
		w.t.Errorf("%s: claims from %s to %s took %v meanwhile, want at most %v", p, from, to, m, limit)
	}
}

// A region that was killed is as one that cannot be reached, and serves again by itself.
func TestARegionThatDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes(), Delay: 60 * time.Millisecond})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap")}
	w.create("eu", namespaces...)
	w.placed(namespaces...)
	w.learn(namespaces)
	c := w.crowd(4, namespaces...)
	rounds := 1
	if stress(t) > 0 {
		rounds = 10
	}
	for n := range rounds {
		dead := allRegions[n%len(allRegions)]
		p := partition{region: dead, sends: true, receives: true}
		w.Kill(dead)
		begun := time.Now()
		var probes sync.WaitGroup
		for _, from := range allRegions {
			if from != dead {
				probes.Go(func() { w.unreachable(p, from, dead, begun) })
				probes.Go(func() { w.served(p, from, from) })
			}
		}
		probes.Wait()
		w.Restart(dead)
		up := time.Now()
		for _, from := range allRegions {
			w.grants(healedWithin+busy-time.Since(up), w.bare[from], from, homeOf(dead))
		}
		w.t.Logf("%s was killed: all is as before %v after it served again", dead, time.Since(up))
	}
	c.finish(t)
}

// All regions end and start again, in any order, and know the placements.
func TestAllRegionsStartAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes()})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap")}
	w.create("us", namespaces...)
	w.placed(namespaces...)
	key := w.fresh(homeOf("us"))
	before, _, err := w.claim(w.bare["eu"], key, "a")
	if err != nil || before.Granted == nil {
		t.Fatalf("%+v, %v", before, err)
	}
	for _, name := range allRegions {
		w.Kill(name)
	}
	w.Restart("us")
	w.grants(10*time.Second, w.bare["us"], "us", homeOf("us")) // it needs nobody
	w.Restart("eu")
	within(t, 10*time.Second, "what eu was granted is granted again", func() error {
		again, _, err := w.claim(w.bare["eu"], key, "a")
		if err == nil && (again.Granted == nil || again.Granted.Fence != before.Granted.Fence) {
			t.Fatalf("claimed again: %+v, want fence %d", again, before.Granted.Fence)
		}
		return err
	})
	if _, _, err := w.claim(w.bare["eu"], w.fresh(homeOf("ap")), "a"); !errors.Is(err, store.ErrHomeUnreachable) {
		t.Errorf("a claim for ap, which is down: %v; want that it is unreachable", err)
	}
	w.Restart("ap")
	for _, from := range allRegions {
		for _, to := range allRegions {
			w.grants(10*time.Second, w.bare[from], from, homeOf(to))
		}
	}
}
