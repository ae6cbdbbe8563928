package regiontest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// disagreements are topology files that contradict each other.
var disagreements = map[string]struct {
	change func(region string, f *TopologyFile)
	says   []string // one of these words must be in what somebody is told
}{
	"other placements": {func(region string, f *TopologyFile) {
		if region == "us" {
			f.Placements["payments"] = "fixed us"
		}
	}, []string{"placement", "placed", "rule"}},
	"an address that leads back": {func(region string, f *TopologyFile) {
		if region == "eu" {
			f.Addresses["us"] = f.Addresses["eu"]
		}
	}, []string{"us", "eu"}},
	"addresses of two regions changed over": {func(region string, f *TopologyFile) {
		if region == "eu" {
			f.Addresses["us"], f.Addresses["ap"] = f.Addresses["ap"], f.Addresses["us"]
		}
	}, []string{"us", "ap"}},
	"a region that others do not know": {func(region string, f *TopologyFile) {
		if region == "us" {
			delete(f.Addresses, "ap")
			f.Placements["*"] = "spread eu us"
		}
	}, []string{"ap", "region", "placement", "rule"}},
}

func disputed() map[string]string {
	return map[string]string{"payments": "fixed eu", "theirs": "fixed us", "*": "spread eu us ap"}
}

// Files that disagree from the beginning: a server that does not start says why; one that starts
// never makes a second home.
func TestFilesThatDisagree(t *testing.T) {
	for name, test := range disagreements {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Prepare(t, Plan{Names: allRegions, Placements: disputed(), Mislead: test.change})
			running := r.tryLaunch(allRegions)
			t.Logf("serving: %v", running)
			said := r.quarrel(t, running)
			t.Log(said)
			if !containsAny(said, test.says) {
				t.Errorf("nobody was told of %q: %s", test.says, said)
			}
		})
	}
}

// Files that disagree after all was agreed: one region starts with another file.
func TestAFileThatIsChangedLater(t *testing.T) {
	for name, test := range disagreements {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Plan{Placements: disputed()})
			w.create("eu", "payments", "theirs")
			w.placed("payments", "theirs", store.DefaultNamespace)
			for _, misled := range allRegions {
				w.Kill(misled)
				w.Rewrite(misled, func(f *TopologyFile) { test.change(misled, f) })
			}
			running := w.tryLaunch(allRegions)
			t.Logf("serving: %v", running)
			t.Log(w.quarrel(t, running))
		})
	}
}

// tryLaunch starts regions and returns those that serve; the others must say why they do not.
func (r *Regions) tryLaunch(names []string) []string {
	var running []string
	for _, name := range names {
		r.Launch(name)
	}
	for _, name := range names {
		p := r.Process(name)
		switch {
		case p.Serves():
			running = append(running, name)
		case p.Wait(time.Second) <= 0:
			r.t.Errorf("%s neither serves nor ends with an error:\n%s", name, p.Output())
		}
	}
	return running
}

// quarrel has callers in all regions claim the same keys for a while. It returns what they and
// the servers have said.
func (r *Regions) quarrel(t *testing.T, running []string) string {
	h := NewHistory()
	ctx, cancel := context.WithTimeout(t.Context(), max(1500*time.Millisecond, stress(t)/10))
	defer cancel()
	said := make(chan string, 100000)
	var callers sync.WaitGroup
	for _, from := range running {
		admin, s := r.Client(from), h.Record(from, false, Bare(r.Conn(from)))
		callers.Go(func() {
			for _, namespace := range []string{"payments", "theirs"} {
				for err := errNotYet; err != nil && ctx.Err() == nil; {
					_, err = admin.CreateNamespace(ctx, store.Namespace{Name: namespace})
					said <- fmt.Sprintf("%s creates %s: %v", from, namespace, err)
				}
			}
		})
		callers.Go(func() { r.claimAll(ctx, from, s, said) })
	}
	callers.Wait()
	close(said)
	for _, fault := range h.Check() {
		t.Error(fault)
	}
	t.Log(h.Summary())
	lines := map[string]bool{}
	for line := range said {
		lines[line] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n") + "\n" + r.Outputs()
}

// claimAll claims keys that callers in other regions claim too. Who is refused must be told why.
func (r *Regions) claimAll(ctx context.Context, from string, s store.Store, said chan<- string) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		for _, namespace := range []string{"payments", "theirs", store.DefaultNamespace} {
			key := store.Key{Namespace: namespace, ID: fmt.Sprint("disputed-", n)}
			patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			_, err := s.Claim(patient, store.ClaimRequest{Key: key, AttemptID: from, Lease: LongLease})
			cancel()
			if err == nil {
				continue
			}
			said <- fmt.Sprintf("%s claims in %s: %v", from, namespace, err)
			var refused *store.Error
			if !errors.As(err, &refused) || refused.Detail == "" {
				r.t.Errorf("a claim in %s from %s is refused without a word why: %v", namespace, from, err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func containsAny(text string, words []string) bool {
	for _, word := range words {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}
