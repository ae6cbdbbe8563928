package regiontest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	oneWay    = 100 * time.Millisecond
	roundTrip = 2 * oneWay
	// hopLimit is more than a way there and back, and less than two.
	hopLimit  = 350 * time.Millisecond
	samples   = 3
	nearLimit = 100 * time.Millisecond
)

// pace is how long calls took, and who answered them.
type pace struct {
	took      []time.Duration
	forwarded int
	homes     map[string]bool
}

func (p *pace) add(took time.Duration, served store.Served) {
	p.took = append(p.took, took)
	if served.Forwarded {
		p.forwarded++
	}
	if p.homes == nil {
		p.homes = map[string]bool{}
	}
	p.homes[served.Home] = true
}

// paces carries keys from claim to end, and measures each kind of call.
func (w *world) paces(s store.Store, namespace string) map[string]*pace {
	w.t.Helper()
	ctx := w.t.Context()
	all := map[string]*pace{"claim": {}, "renew": {}, "complete": {}, "release": {}, "lookup": {}, "repeat": {}}
	measure := func(what string, call func() (store.Served, error)) {
		w.t.Helper()
		begun := time.Now()
		served, err := call()
		if err != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
		all[what].add(time.Since(begun), served)
	}
	for i := range samples {
		key, fence := w.fresh(namespace), int64(0)
		measure("claim", func() (store.Served, error) {
			got, err := s.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "a"})
			if err == nil {
				fence = got.Granted.Fence
			}
			return got.Served, err
		})
		if i%2 == 0 {
			measure("release", func() (store.Served, error) {
				got, err := s.Release(ctx, store.ReleaseRequest{Key: key, AttemptID: "a", Fence: fence, Effect: store.EffectNone})
				return got.Served, err
			})
			continue
		}
		measure("renew", func() (store.Served, error) {
			got, err := s.Renew(ctx, store.RenewRequest{Key: key, AttemptID: "a", Fence: fence})
			return got.Served, err
		})
		measure("complete", func() (store.Served, error) {
			got, err := s.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{Body: []byte("x")}})
			return got.Served, err
		})
		measure("lookup", func() (store.Served, error) {
			got, err := s.Lookup(ctx, store.LookupRequest{Key: key})
			return got.Served, err
		})
		measure("repeat", func() (store.Served, error) {
			got, err := s.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "b"})
			return got.Served, err
		})
	}
	return all
}

// judge checks the paces of calls on keys that live in one region.
func judge(t *testing.T, who string, paces map[string]*pace, home string, atLeast, below time.Duration, forwarded bool) {
	t.Helper()
	for what, p := range paces {
		m := median(p.took)
		t.Logf("%s, %s: %v", who, what, m)
		if m < atLeast || m >= below {
			t.Errorf("%s: %s took %v (all: %v), want from %v to %v", who, what, m, p.took, atLeast, below)
		}
		if len(p.homes) != 1 || !p.homes[home] {
			t.Errorf("%s: %s was answered by %v, want %s", who, what, p.homes, home)
		}
		if want := map[bool]int{true: len(p.took)}[forwarded]; p.forwarded != want {
			t.Errorf("%s: %d of %d %ss were forwarded, want %d", who, p.forwarded, len(p.took), what, want)
		}
	}
}

func TestACallFromAfarCostsOneRoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes(), Delay: oneWay})
	namespaces := []string{homeOf("eu"), homeOf("us"), homeOf("ap")}
	w.create("eu", namespaces...)
	w.placed(namespaces...)
	if length := stress(t); length > 0 {
		idle(t, min(length, time.Minute+5*time.Second))
	}

	// The first call on each way finds a connection that is there.
	var first []time.Duration
	for _, from := range allRegions {
		for _, to := range allRegions {
			if from == to {
				continue
			}
			if w.Network.Connections(from, to) == 0 {
				t.Errorf("%s has no connection to %s before the first call", from, to)
			}
			got, took, err := w.claim(w.bare[from], w.fresh(homeOf(to)), "first")
			if err != nil || got.Granted == nil || !got.Served.Forwarded || got.Served.Home != to {
				t.Fatalf("the first claim from %s to %s: %+v, %v", from, to, got, err)
			}
			first = append(first, took)
		}
	}
	t.Logf("first calls: %v", first)
	if m := median(first); m < roundTrip || m >= hopLimit {
		t.Errorf("the first calls took %v, want from %v to %v", first, roundTrip, hopLimit)
	}

	judge(t, "at home", w.paces(w.bare["eu"], homeOf("eu")), "eu", 0, nearLimit, false)
	judge(t, "by way of the server in us", w.paces(w.bare["us"], homeOf("eu")), "eu", roundTrip, hopLimit, true)

	c := w.Client("us")
	judge(t, "a Go client in us, at home", w.paces(c, homeOf("us")), "us", 0, nearLimit, false)
	learns := 0
	within(t, 10*time.Second, "the client in us goes to eu itself", func() error {
		learns++
		got, took, err := w.claim(c, w.fresh(homeOf("eu")), "a")
		switch {
		case err != nil:
			t.Fatal(err)
		case got.Served.Forwarded && took >= 2*hopLimit:
			t.Errorf("a call took %v while the client was learning", took)
		case got.Served.Forwarded:
			return fmt.Errorf("%w: %+v", errNotYet, got.Served)
		}
		return nil
	})
	t.Logf("the client went to eu itself with call %d", learns)
	judge(t, "a Go client in us", w.paces(c, homeOf("eu")), "eu", roundTrip, hopLimit, false)
}

// idle lets nothing happen for long.
func idle(t *testing.T, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	<-ctx.Done()
}
