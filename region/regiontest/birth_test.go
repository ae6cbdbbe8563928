package regiontest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// Regions die while namespaces are made and get their first placement. Each of them can be used
// in the end: nobody takes a region that was slow for one that has lost its store.
func TestRegionsThatDieWhileNamespacesAreMade(t *testing.T) {
	t.Parallel()
	placements := map[string]string{"*": "prefix eu-=eu us-=us *=ap"}
	w := newWorld(t, Plan{Placements: placements, Delay: 20 * time.Millisecond})
	w.placed(store.DefaultNamespace)
	rounds := 4
	if length := stress(t); length > 0 {
		rounds = int(length / (2 * time.Second))
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	var namespaces []string
	for n := range rounds {
		name := fmt.Sprint("born-", n)
		namespaces = append(namespaces, name)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		admin := w.Client(allRegions[n%3])
		created := make(chan error, 1)
		go func() {
			_, err := admin.CreateNamespace(ctx, store.Namespace{Name: name})
			created <- err
		}()
		idle(t, time.Duration(rng.IntN(400))*time.Millisecond)
		dead := allRegions[rng.IntN(3)]
		w.Kill(dead)
		w.Restart(dead)
		if err := <-created; err != nil {
			t.Logf("%s: %v", name, err) // made up for below
		}
		cancel()
	}
	for _, name := range namespaces {
		w.create("ap", name) // makes up for what broke off
	}
	w.placed(namespaces...)
	for _, name := range namespaces {
		for _, from := range allRegions {
			for _, entity := range []string{"eu-1", "us-1", "ap-1"} {
				within(t, healedWithin, fmt.Sprintf("a claim from %s on %s of %s is granted", from, entity, name), func() error {
					key := w.fresh(name)
					key.Entity = entity
					_, _, err := w.claim(w.bare[from], key, "a")
					return err
				})
			}
		}
	}
}
