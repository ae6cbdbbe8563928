package regiontest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// settled is a key that was completed in region eu.
func (w *world) settled(key store.Key) store.Key {
	w.t.Helper()
	got, _, err := w.claim(w.bare["eu"], key, "a")
	if err != nil || got.Granted == nil {
		w.t.Fatalf("%+v, %v", got, err)
	}
	_, err = w.bare["eu"].Complete(w.t.Context(), store.CompleteRequest{
		Key: key, AttemptID: "a", Fence: got.Granted.Fence, Outcome: &store.Outcome{Body: []byte("charged")},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return key
}

// neverGranted has callers in all regions claim keys that were completed, for a while. Whoever
// answers may say so, or refuse, but not grant it.
func (w *world) neverGranted(keys []store.Key, callers ...string) {
	w.t.Helper()
	said := map[string]bool{}
	granted := map[store.Key]bool{}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, from := range callers {
			for _, key := range keys {
				got, _, err := w.claim(w.bare[from], key, "b")
				if got.Granted != nil && !granted[key] {
					granted[key] = true
					w.t.Errorf("a key of %s that was completed is granted to a caller in %s: %+v, by %+v", key.Namespace, from, got.Granted, got.Served)
				}
				if err != nil {
					said[from+": "+err.Error()] = true
				}
			}
		}
	}
	for text := range said {
		w.t.Log(text)
	}
}

// A region whose directory is gone knows nothing of its keys. It must not learn from the others
// that they live with it and take them for new; neither by itself, nor when an operator follows
// the advice to create a namespace once more.
func TestARegionThatLostItsStore(t *testing.T) {
	t.Parallel()
	placements := threeHomes()
	placements["*"] = "fixed eu"
	w := newWorld(t, Plan{Placements: placements})
	w.create("eu", homeOf("eu"))
	w.placed(homeOf("eu"), store.DefaultNamespace)
	keys := []store.Key{w.settled(w.fresh(homeOf("eu"))), w.settled(w.fresh(store.DefaultNamespace))}
	w.Kill("eu")
	if err := os.RemoveAll(filepath.Join(w.dirs["eu"], "data")); err != nil {
		t.Fatal(err)
	}
	callers := []string{"us", "ap"}
	if running := w.tryLaunch([]string{"eu"}); len(running) > 0 {
		callers = append(callers, "eu")
	}
	t.Log(w.Process("eu").Output())
	w.neverGranted(keys, callers...)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := w.Client("us").CreateNamespace(ctx, store.Namespace{Name: homeOf("eu")})
	t.Logf("created once more: %v", err)
	w.neverGranted(keys, callers...)
}

// A server that is started with another region's name, over its own store or over none, is not
// that region.
func TestAServerThatTakesItselfForAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes()})
	w.create("eu", homeOf("eu"), homeOf("us"))
	w.placed(homeOf("eu"), homeOf("us"), store.DefaultNamespace)
	keys := []store.Key{w.settled(w.fresh(homeOf("eu"))), w.settled(w.spreadTo("eu", store.DefaultNamespace))}
	w.Kill("us")
	impostor := func(dir string) *Process {
		return start(t, w.sites["us"], "serve", "--region=eu", "--topology="+w.topology("eu"), "--data-dir="+dir, "--grpc-addr="+w.Addr("us"), "--admin-addr=")
	}
	own := impostor(filepath.Join(w.dirs["us"], "data"))
	if own.Serves() || own.Wait(time.Second) <= 0 || !strings.Contains(own.Output(), `"us"`) {
		t.Errorf("over the store of us it serves, or does not say whose store it is: %s", own.Output())
	}
	if empty := impostor(t.TempDir()); !empty.Serves() {
		t.Fatalf("over no store it does not serve: %s", empty.Output())
	}
	w.neverGranted(keys, "us", "eu", "ap")
}

// spreadTo is a new key that lives in a region by `spread`.
func (w *world) spreadTo(home, namespace string) store.Key {
	for {
		if key := w.fresh(namespace); spreadHome(key, allRegions...) == home {
			return key
		}
	}
}
