package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/fair"
)

// gathered is a coalescer whose batches wait to be let go, and tell what they held.
type gathered struct {
	*coalescer[string, string]
	mu      sync.Mutex
	batches [][]string
	let     chan struct{}
}

func gather(limit int) *gathered {
	g := &gathered{let: make(chan struct{})}
	g.coalescer = newCoalescer(limit, batchesAtOnce, &room{}, func(ops []*operation[string, string]) {
		var held []string
		each(ops, func(op *operation[string, string]) {
			held = append(held, op.query)
			op.answer = "did " + op.query
		})
		g.mu.Lock()
		g.batches = append(g.batches, held)
		g.mu.Unlock()
		<-g.let
	})
	return g
}

// ask does an operation whose query names it.
func (g *gathered) ask(ctx context.Context, namespace, id, query string) (string, error) {
	key := store.Key{Namespace: namespace, ID: id}
	return g.do(ctx, &task{key: key, digest: key.Digest()}, 0, query)
}

// TestBatches: the first operations leave at once and alone; those that come while two
// batches are on their way share the next ones, of no more than the limit, one namespace
// after the other; of one key they come together, in their order.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gather(4)
		ask := func(namespace, id, query string) {
			go func() {
				if got, err := g.ask(t.Context(), namespace, id, query); got != "did "+query || err != nil {
					t.Errorf("%s: %q, %v", query, got, err)
				}
			}()
			synctest.Wait()
		}
		ask("n", "1", "first")
		ask("n", "2", "second")
		for i := range 4 {
			ask("greedy", "same", fmt.Sprint("greedy ", i))
		}
		ask("n", "3", "third")
		for range 4 { // batches
			g.let <- struct{}{}
			synctest.Wait()
		}
		g.close()
		if len(g.batches) != 4 || len(g.batches[0]) != 1 || len(g.batches[1]) != 1 || len(g.batches[2]) != 4 || len(g.batches[3]) != 1 {
			t.Fatalf("batches: %q, want the first two alone, then four together, then one", g.batches)
		}
		got := map[string]bool{}
		var greedy []string
		for _, query := range g.batches[2] {
			got[query] = true
			if query != "third" {
				greedy = append(greedy, query)
			}
		}
		if !got["third"] || fmt.Sprint(greedy) != "[greedy 0 greedy 1 greedy 2]" {
			t.Errorf("third batch %q: want the other namespace's in it, and the greedy one's in their order", g.batches[2])
		}
	})
}

// TestCoalescerIsBounded: what one namespace may have waiting is bounded, and the others'
// operations still get in.
func TestCoalescerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gather(1)
		ctx, cancel := context.WithCancel(t.Context())
		var overloaded atomic.Int64
		for i := range fair.MaxOpsNamespace + 10 {
			go func() {
				if _, err := g.ask(ctx, "greedy", fmt.Sprint(i), ""); errors.Is(err, store.ErrOverloaded) {
					overloaded.Add(1)
				}
			}()
			if i < batchesAtOnce {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if got := overloaded.Load(); got != 10-batchesAtOnce {
			t.Errorf("%d operations were refused, want %d", got, 10-batchesAtOnce)
		}
		other := make(chan error, 1)
		go func() { _, err := g.ask(t.Context(), "modest", "", ""); other <- err }()
		synctest.Wait()
		for range 2 * batchesAtOnce {
			g.let <- struct{}{}
			synctest.Wait()
		}
		select {
		case err := <-other:
			if err != nil {
				t.Errorf("another namespace's operation: %v", err)
			}
		default:
			t.Error("another namespace's operation waits for the greedy one's")
		}
		cancel()
		close(g.let)
		g.close()
	})
}

// TestClosedCoalescer: what is on its way ends, and nothing more comes in.
func TestClosedCoalescer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gather(1)
		go func() {
			if got, err := g.ask(t.Context(), "n", "", "last"); got != "did last" || err != nil {
				t.Errorf("what was on its way: %q, %v", got, err)
			}
		}()
		synctest.Wait()
		closed := make(chan struct{})
		go func() { g.close(); close(closed) }()
		synctest.Wait()
		if _, err := g.ask(t.Context(), "n", "", "late"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("after close: %v, want ErrUnavailable", err)
		}
		select {
		case <-closed:
			t.Error("closed while a batch is on its way")
		default:
		}
		g.let <- struct{}{}
		<-closed
	})
}

// TestOneRowNeverFailsItsNeighbours: a batch that the database refuses is carried out one by
// one; one that failed for another reason is not.
func TestOneRowNeverFailsItsNeighbours(t *testing.T) {
	refused := errors.New("bad row")
	for _, c := range []struct {
		cause error
		alone bool
	}{
		{fmt.Errorf("%w: %w", errDamagedRow, refused), true},
		{context.DeadlineExceeded, false},
		{unavailable(refused), false},
	} {
		ops := make([]*operation[string, string], 3)
		for i := range ops {
			ops[i] = &operation[string, string]{query: fmt.Sprint(i)}
		}
		apart(ops, func(ops []*operation[string, string]) error {
			for _, op := range ops {
				if op.query == "1" {
					return c.cause
				}
			}
			return nil
		})
		for i, op := range ops {
			if failed := op.err != nil; failed != (i == 1 || !c.alone) {
				t.Errorf("%v: operation %d got the error %v", c.cause, i, op.err)
			}
		}
	}
}
