package regiontest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
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

// A region's store is lost, another one is accepted and works; it is lost too, and the former one
// turns up. Whether it is accepted again or not, it grants nothing that the other has completed.
func TestAStoreThatTurnsUpAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: map[string]string{"*": "fixed eu"}})
	w.placed(store.DefaultNamespace)
	w.grants(20*time.Second, w.bare["eu"], "eu", store.DefaultNamespace) // once all know its store
	keys := []store.Key{w.settled(w.fresh(store.DefaultNamespace))}
	data := filepath.Join(w.dirs["eu"], "data")
	move := func(from, to string) {
		t.Helper()
		w.Kill("eu")
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(data, data+"-former")
	w.Restart("eu")
	former := w.acceptAnother("us", "eu")
	lifted := &pb.LiftRecoveryRequest{Namespace: store.DefaultNamespace, NothingKnown: true, LeasesEnded: true, Reason: "all that was done is known"}
	within(t, 10*time.Second, "eu serves without a floor", func() error {
		_, err := pb.NewAdminServiceClient(w.Conn("eu")).LiftRecovery(t.Context(), lifted)
		if err == nil {
			_, _, err = w.claim(w.bare["eu"], w.fresh(store.DefaultNamespace), "a")
		}
		return err
	})
	keys = append(keys, w.settled(w.fresh(store.DefaultNamespace)))

	move(data, data+"-second")
	mistaken := &pb.AcceptStoreRequest{Region: "eu", StoreId: former, Reason: "it was found"}
	if _, err := pb.NewAdminServiceClient(w.Conn("us")).AcceptStore(t.Context(), mistaken); err == nil {
		t.Error("a store that does not answer is accepted")
	}
	move(data+"-former", data)
	w.Restart("eu")
	w.neverGranted(keys, allRegions...)
	w.acceptAnother("us", "eu")
	within(t, 10*time.Second, "eu is a home again", func() error {
		_, _, err := w.claim(w.bare["eu"], w.fresh(store.DefaultNamespace), "b")
		if errors.Is(err, store.ErrUnknownHistory) {
			return nil
		}
		return fmt.Errorf("a claim of a key that may have been forgotten: %w", err)
	})
	w.neverGranted(keys, allRegions...)
}

// acceptAnother accepts the store that a region shows another one, and returns the id of the one
// that was known before.
func (w *world) acceptAnother(by, region string) (before string) {
	w.t.Helper()
	within(w.t, 10*time.Second, "region "+by+" accepts the store of "+region, func() error {
		topology, err := w.service[by].GetTopology(w.t.Context(), &pb.GetTopologyRequest{})
		if err != nil {
			return err
		}
		for _, there := range topology.GetRegions() {
			if there.GetName() == region && there.GetOtherStoreId() != "" {
				before = there.GetStoreId()
				accept := &pb.AcceptStoreRequest{Region: region, StoreId: there.GetOtherStoreId(), Reason: "it is what we have", Again: true}
				_, err := pb.NewAdminServiceClient(w.Conn(by)).AcceptStore(w.t.Context(), accept)
				return err
			}
		}
		return fmt.Errorf("it shows no other store: %v", topology)
	})
	return before
}

// spreadTo is a new key that lives in a region by `spread`.
func (w *world) spreadTo(home, namespace string) store.Key {
	for {
		if key := w.fresh(namespace); spreadHome(key, allRegions...) == home {
			return key
		}
	}
}
