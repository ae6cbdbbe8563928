package server

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// stepped is a disk whose log syncs one at a time, when it is told to, once it is held.
type stepped struct {
	held atomic.Bool
	step chan struct{}
}

// MaybeError implements errorfs.Injector.
func (d *stepped) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		if d.held.Load() && strings.HasSuffix(op.Path, ".log") {
			<-d.step
		}
	}
	return nil
}

func (d *stepped) String() string { return "stepped" }

// release lets the disk go on by itself.
func (d *stepped) release() {
	if d.held.Swap(false) {
		close(d.step)
	}
}

// dropPooled empties the pools: channels must not go from one bubble to another.
func dropPooled() {
	runtime.GC() // moves what is pooled aside
	runtime.GC() // drops it
}

// tally counts the answers to calls that were sent at once.
type tally struct {
	sent, answered, overloaded, failed atomic.Int64
}

func (y *tally) send(calls *sync.WaitGroup, call func() error) {
	y.sent.Add(1)
	calls.Go(func() {
		switch err := call(); {
		case errors.Is(err, store.ErrOverloaded):
			y.overloaded.Add(1)
		case err != nil:
			y.failed.Add(1)
		default:
			y.answered.Add(1)
		}
	})
}

func (y *tally) String() string {
	return fmt.Sprintf("%d sent, %d answered, %d overloaded, %d failed", y.sent.Load(), y.answered.Load(), y.overloaded.Load(), y.failed.Load())
}

func (y *tally) all() bool { return y.answered.Load() == y.sent.Load() }

// Case 43: one greedy tenant at ten times its share. Others are answered before all but a
// few of its calls and never refused, what it may have waiting is bounded, and Completes go
// before Claims.
func TestGreedyTenant(t *testing.T) {
	const (
		others       = 10
		greedyClaims = 8000
		greedyLarge  = 400 // Completes of 250 KiB; a namespace may have 16 MiB waiting
		batch        = 1024

		batchCompletes = 4<<20/(250<<10) + 1 // a commit has about 4 MiB
	)
	dropPooled()
	defer dropPooled()
	synctest.Test(t, func(t *testing.T) {
		disk := &stepped{step: make(chan struct{})}
		backend, err := pebblestore.Open("data", pebblestore.Options{
			FS: errorfs.Wrap(vfs.NewMem(), disk), MemTableBytes: 64 << 20, MaintainEvery: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer backend.Close()
		r := newRig(t, backend)
		defer r.close()
		large := &store.Outcome{Body: make([]byte, 250<<10)}
		complete := func(c *client.Client, key store.Key, fence int64) func() error {
			return func() error {
				return only(c.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: large}))
			}
		}
		claim := func(c *client.Client, key store.Key) func() error {
			return func() error { return only(c.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})) }
		}
		keyOf := func(namespace string, i int) store.Key { return store.Key{Namespace: namespace, ID: fmt.Sprint(i)} }

		// Everybody holds what it will complete.
		first := r.client()
		hold := func(namespace string, keys int) []int64 {
			if _, err := first.CreateNamespace(t.Context(), store.Namespace{Name: namespace}); err != nil {
				t.Fatal(err)
			}
			fences := make([]int64, keys)
			for i := range fences {
				fences[i] = grant(t, first, keyOf(namespace, i), "a")
			}
			return fences
		}
		greedyFences := hold("greedy", greedyLarge)
		othersFences := map[string][]int64{}
		for i := range others {
			name := fmt.Sprint("other-", i)
			othersFences[name] = hold(name, 4)
		}

		disk.held.Store(true)
		defer disk.release()
		var calls sync.WaitGroup
		var greedy struct{ claims, completes tally }
		crowd := [...]*client.Client{r.client(), r.client(), r.client()}
		for i := range greedyClaims {
			greedy.claims.send(&calls, claim(crowd[i%3], keyOf("greedy", greedyLarge+i)))
		}
		for i, fence := range greedyFences {
			greedy.completes.send(&calls, complete(crowd[i%3], keyOf("greedy", i), fence))
		}
		synctest.Wait() // all of it has arrived
		// What is not refused is in the queue, 16 MiB, or in the two commits on their way,
		// 4 MiB each.
		inside := (greedy.completes.sent.Load() - greedy.completes.overloaded.Load()) * int64(large.Size())
		if inside > (16+2*(4+1))<<20 || greedy.completes.overloaded.Load() == 0 {
			t.Errorf("%d bytes of the greedy tenant's wait; %v", inside, &greedy.completes)
		}

		var other struct{ claims, completes tally }
		decent := r.client()
		for name, fences := range othersFences {
			for i, fence := range fences {
				other.claims.send(&calls, claim(decent, keyOf(name, len(fences)+i)))
				other.completes.send(&calls, complete(decent, keyOf(name, i), fence))
			}
		}
		synctest.Wait()
		before, claimsAhead := greedy.claims.answered.Load(), int64(-1)
		for !other.completes.all() || !other.claims.all() {
			if greedy.claims.all() {
				t.Fatalf("the greedy tenant's claims are all answered first; others: claims %v; completes %v", &other.claims, &other.completes)
			}
			disk.step <- struct{}{}
			synctest.Wait()
			if claimsAhead < 0 && other.claims.all() {
				claimsAhead = greedy.claims.answered.Load() - before
			}
		}
		// Two commits were on their way, with nothing but the greedy tenant's operations; in the
		// next one everybody has an equal share.
		completesAhead := greedy.completes.answered.Load()
		t.Logf("ahead of the others: %d claims and %d completes", claimsAhead, completesAhead)
		if claimsAhead > 3*batch {
			t.Errorf("%d claims of the greedy tenant's were answered first", claimsAhead)
		}
		if completesAhead > 2*batchCompletes+4 {
			t.Errorf("%d completes of the greedy tenant's were answered first", completesAhead)
		}
		// Its completes came after its claims, and do not wait for them.
		if completesAhead == 0 {
			t.Error("no complete of the greedy tenant's is answered before its claims are")
		}

		disk.release()
		calls.Wait()
		if !greedy.claims.all() {
			t.Errorf("the greedy tenant's claims: %v", &greedy.claims)
		}
		if greedy.completes.failed.Load() != 0 {
			t.Errorf("the greedy tenant's completes: %v", &greedy.completes)
		}
	})
}
