package pebblestore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
)

// Whoever lists much waits for their own listings, and nobody else for more than one.
func TestReadersTakeTurnsByNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			r     readers
			order []string
		)
		leave, err := r.enter(t.Context(), "greedy")
		if err != nil {
			t.Fatal(err)
		}
		for _, namespace := range []string{"greedy", "greedy", "greedy", "shop", "shop", "bank"} {
			go func() {
				leave, err := r.enter(t.Context(), namespace)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, namespace)
				leave()
			}()
			synctest.Wait() // so that they come in this order
		}
		leave()
		synctest.Wait()
		want := []string{"greedy", "shop", "bank", "greedy", "shop", "greedy"}
		if !slices.Equal(order, want) {
			t.Errorf("got %v, want %v", order, want)
		}
		if r.busy || len(r.turns) > 0 || len(r.waiting) > 0 {
			t.Errorf("left behind: busy %v, turns %v, waiting %v", r.busy, r.turns, r.waiting)
		}
	})
}

func TestReadersThatWaitEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r readers
		leave, err := r.enter(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		for _, namespace := range []string{"shop", "bank"} {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				_, err := r.enter(ctx, namespace)
				gone <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want the context's error", namespace, err)
			}
		}
		leave()
		leave() // changes nothing
		if r.busy || len(r.turns) > 0 || len(r.waiting) > 0 {
			t.Errorf("left behind: busy %v, turns %v, waiting %v", r.busy, r.turns, r.waiting)
		}
	})
}

// A turn that comes when its owner has just gone is the next one's.
func TestATurnThatNobodyTakesIsPassedOn(t *testing.T) {
	var r readers
	first, _ := r.queue("shop")
	<-first
	gone, _ := r.queue("shop")
	next, _ := r.queue("bank")
	r.leave()
	<-gone
	r.giveUp("shop", gone)
	<-next
}

func TestListingsThatWaitHoldUpNoInspection(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	mustClaim(t, s, "k", "a")
	leave, err := s.listing.enter(t.Context(), store.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxReaders {
		if _, err := s.listing.queue(store.DefaultNamespace); err != nil {
			t.Fatalf("%d wait: %v", i, err)
		}
	}
	if inspection, err := s.InspectRecord(t.Context(), testClaim("k", "a").Key); err != nil || inspection.Record == nil {
		t.Errorf("InspectRecord: %v, %v", inspection, err)
	}
	list := func(ctx context.Context) error {
		_, err := s.ListRecords(ctx, store.ListRequest{Namespace: store.DefaultNamespace})
		return err
	}
	if err := list(t.Context()); !errors.Is(err, store.ErrOverloaded) {
		t.Errorf("ListRecords beyond the bound: %v, want ErrOverloaded", err)
	}
	leave()
}

func TestAListingEndsWithItsContextWhileItWaits(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	leave, err := s.listing.enter(t.Context(), store.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ListRecords(ended, store.ListRequest{Namespace: store.DefaultNamespace}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}

// A listing that waits for what it has read to be on disk holds up nobody.
func TestAListingThatIsReadHoldsUpNoOther(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	mustClaim(t, s, "k", "a")
	letGo := hold(t, s)
	s.durable.Store(&commitTime{}) // as if what is read were not on disk yet
	read := make(chan error)
	for range 2 {
		go func() {
			_, err := s.ListRecords(context.Background(), store.ListRequest{Namespace: store.DefaultNamespace})
			read <- err
		}()
	}
	waitQueued(s, classSettle, 2)
	letGo()
	for range 2 {
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
}
