package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
)

// holdRow locks a key's row in its bucket until the transaction ends.
func (g *stage) holdRow(key store.Key) pgx.Tx {
	g.Helper()
	tx, err := g.conn.Begin(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	digest := key.Digest()
	if _, err := tx.Exec(g.Context(), "SELECT 1 FROM "+g.bucket().table("local")+" WHERE digest = $1 FOR UPDATE", digest[:]); err != nil {
		g.Fatal(err)
	}
	return tx
}

// TestOneLockedRowDelaysNoNeighbour: the batch of a row that somebody holds leaves it behind.
func TestOneLockedRowDelaysNoNeighbour(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	const n = 20
	keys, fences := make([]store.Key, n), make([]int64, n)
	for i := range keys {
		keys[i] = g.key()
		fences[i] = g.granted(s, claimOf(keys[i], "a")).Fence
	}
	counted := &countedTx{dialect: s.dialect}
	s.dialect = counted
	held := g.holdRow(keys[0])
	let := dam(s.batches.completes[store.TierHour])
	var neighbours, first sync.WaitGroup
	complete := func(i int) {
		_, err := s.Complete(t.Context(), store.CompleteRequest{Key: keys[i], AttemptID: "a", Fence: fences[i], Outcome: &store.Outcome{}})
		if err != nil {
			t.Errorf("complete %d: %v", i, err)
		}
	}
	first.Go(func() { complete(0) })
	for i := range keys[1:] {
		neighbours.Go(func() { complete(i + 1) })
	}
	g.eventually("all are queued", func() bool { return waitingIn(s.batches.completes[store.TierHour]) == n })
	let()
	neighbours.Wait() // while the row is held: a stall would not end before the test does
	if got := counted.n.Load(); got > 1 {
		t.Errorf("%d transactions while the row was held, want only that of its own key", got)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Wait()
}

// TestDeadlineIsKept: a caller whose time is up gets its answer, whatever the database does.
func TestDeadlineIsKept(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	key := g.key()
	first := g.granted(s, claimOf(key, "a"))
	g.release(s, key, "a", first.Fence, store.EffectUnknown) // the next claim takes over, in a transaction
	held := g.holdRow(key)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := s.Claim(ctx, claimOf(key, "b"))
		answered <- err
	}()
	g.eventually("the claim waits for the row", func() bool {
		var waiting int
		err := g.gates.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) OR NOT granted AND locktype = 'transactionid'").Scan(&waiting)
		return err == nil && waiting > 0
	})
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("a claim whose caller has left: %v", err)
	}
	var still int
	if err := g.gates.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&still); err != nil || still == 0 {
		t.Errorf("the answer came only when the database had let go (%d wait, %v)", still, err)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestHotKeyWritesInTurn: however many claim a released key at once, they write one after the
// other, and only those that must: here the first.
func TestHotKeyWritesInTurn(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	key := g.key()
	first := g.granted(s, claimOf(key, "a"))
	g.release(s, key, "a", first.Fence, store.EffectNone)
	counted := &countedTx{dialect: s.dialect}
	s.dialect = counted
	let := dam(s.batches.claims[store.TierHour])
	const n = 500
	var granted, held atomic.Int64
	var claims sync.WaitGroup
	for i := range n {
		claims.Go(func() {
			answer, err := s.Claim(t.Context(), claimOf(key, fmt.Sprint("b", i)))
			switch {
			case err != nil:
				t.Error(err)
			case answer.Granted != nil:
				granted.Add(1)
			case answer.InProgress != nil:
				held.Add(1)
			}
		})
	}
	g.eventually("all are queued", func() bool { return waitingIn(s.batches.claims[store.TierHour]) == n })
	let()
	claims.Wait()
	if granted.Load() != 1 || held.Load() != n-1 {
		t.Errorf("%d granted, %d told that it is held; want 1 and %d", granted.Load(), held.Load(), n-1)
	}
	// One of them may come to its turn only after the first has ended it.
	if got := counted.n.Load(); got > n/20 {
		t.Errorf("%d transactions for %d claims, want hardly more than 1", got, n)
	}
}

// countedTx counts transactions.
type countedTx struct {
	dialect
	n atomic.Int64
}

func (c *countedTx) runTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	c.n.Add(1)
	return c.dialect.runTx(ctx, pool, fn)
}

// TestWritesLeaveConnections: transactions of single operations, however many there are, do not
// take the connections that batches need.
func TestWritesLeaveConnections(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	keys := make([]store.Key, 2*s.opts.MaxConns)
	for i := range keys {
		keys[i] = g.key()
		first := g.granted(s, claimOf(keys[i], "a"))
		g.release(s, keys[i], "a", first.Fence, store.EffectUnknown)
	}
	digests := make([][]byte, len(keys))
	for i, key := range keys {
		digest := key.Digest()
		digests[i] = digest[:]
	}
	held, err := g.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), "SELECT 1 FROM "+g.bucket().table("local")+" WHERE digest = ANY($1) ORDER BY digest FOR UPDATE", digests); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var takeovers sync.WaitGroup
	for _, key := range keys {
		takeovers.Go(func() {
			if _, err := s.Claim(ctx, claimOf(key, "b")); !errors.Is(err, context.Canceled) {
				t.Errorf("takeover of a held row: %v", err)
			}
		})
	}
	g.eventually("as many as may wait for rows", func() bool { return s.pool.Stat().AcquiredConns() >= int32(s.opts.MaxConns/2) })
	g.granted(s, claimOf(g.key(), "another's")) // while all of them wait
	cancel()
	takeovers.Wait()
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestWhoHasLeftIsNotServed: operations whose callers have gone before their turn have no
// effect.
func TestWhoHasLeftIsNotServed(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	let := dam(s.batches.claims[store.TierHour])
	ctx, cancel := context.WithCancel(t.Context())
	keys := make([]store.Key, 50)
	var claims sync.WaitGroup
	for i := range keys {
		keys[i] = g.key()
		claims.Go(func() {
			if _, err := s.Claim(ctx, claimOf(keys[i], "a")); !errors.Is(err, context.Canceled) {
				t.Errorf("claim: %v", err)
			}
		})
	}
	g.eventually("all are queued", func() bool { return waitingIn(s.batches.claims[store.TierHour]) == len(keys) })
	cancel()
	claims.Wait()
	let()
	g.granted(s, claimOf(g.key(), "a")) // behind them in the queue
	for _, key := range keys {
		if _, err := g.lookup(s, key); !errors.Is(err, store.ErrKeyNotFound) {
			t.Fatalf("a key whose claimer had left: %v", err)
		}
	}
	if left := s.batches.claims[store.TierHour].room.bytes.Load(); left != 0 {
		t.Errorf("%d bytes are still counted as waiting", left)
	}
}

// TestAnsweredAsUnknownAfterAnUnknownTry: once a try may have taken effect, nobody is told
// that nothing was done.
func TestAnsweredAsUnknownAfterAnUnknownTry(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	try := 0
	err := s.perform(t.Context(), task{tier: store.TierHour, quick: func(context.Context) (found, bool, error) {
		if try++; try == 1 {
			return found{}, false, errors.New("the connection broke after it was sent")
		}
		return found{}, false, store.Refuse(store.ErrOverloaded, "nothing was done")
	}})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOverloaded) || try != 2 {
		t.Errorf("after %d tries: %v, want ErrUnavailable", try, err)
	}
}

// TestDamagedPageIsOfItsKeyAlone: a page that the database cannot read fails the keys on it.
func TestDamagedPageIsOfItsKeyAlone(t *testing.T) {
	g := newStage(t, Timing{})
	s, p := g.proxied()
	keys := make([]store.Key, 10)
	for i := range keys {
		keys[i] = g.key()
		g.granted(s, claimOf(keys[i], "a"))
	}
	p.Add(pgfault.Rule{Match: findText, Times: 1, Do: pgfault.Fail("XX001")})
	let := dam(s.batches.finds[store.TierHour])
	var lookups sync.WaitGroup
	for _, key := range keys {
		lookups.Go(func() {
			if _, err := g.lookup(s, key); err != nil {
				t.Errorf("lookup beside a damaged page: %v", err)
			}
		})
	}
	g.eventually("all are queued", func() bool { return waitingIn(s.batches.finds[store.TierHour]) == len(keys) })
	let()
	lookups.Wait()

	p.Add(pgfault.Rule{Match: findText, Do: pgfault.Fail("XX001")})
	if _, err := g.lookup(s, keys[0]); !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("lookup on a damaged page: %v, want ErrRecordCorrupt", err)
	}
}

// TestCloseIsQuick: what waits is refused, and what is on its way ends.
func TestCloseIsQuick(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	let := dam(s.batches.claims[store.TierHour])
	var claims sync.WaitGroup
	for range 200 {
		key := g.key()
		claims.Go(func() {
			if _, err := s.Claim(t.Context(), claimOf(key, "a")); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("claim that waits at the close: %v", err)
			}
		})
	}
	g.eventually("all are queued", func() bool { return waitingIn(s.batches.claims[store.TierHour]) == 200 })
	closeStore(t, s)
	claims.Wait()
	let()
}

// TestRowNeverMovesBack: a grant whose clock is behind the bucket that the key is in waits
// until it has caught up. Moved back, the key would leave a marker where it must go later.
func TestRowNeverMovesBack(t *testing.T) {
	g := newStage(t, Timing{})
	s := g.open()
	now := g.now()
	old := &row{bucket: bucketAt(store.TierHour, now).next(), rec: &store.Record{Fence: 1, AttemptID: "a"}}
	next := &row{rec: &store.Record{Fence: 2, AttemptID: "b"}}
	w := &writing{s: s, task: &task{tier: store.TierHour}, now: now} // has no transaction to write with
	if err := w.put(old, next); !errors.Is(err, errAgain) {
		t.Errorf("a grant at %v of a key in a later bucket: %v, want to try again", timeOf(now), err)
	}
}
