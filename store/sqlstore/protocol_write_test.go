package sqlstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// ahead is a claim whose intent time the quick statement cannot grant, so that it has a
// transaction of its own.
func (g *stage) ahead(key store.Key, attempt string) store.ClaimRequest {
	g.wallAhead.Store((time.Hour).Microseconds())
	req := claimOf(key, attempt)
	req.IntentTime = timeOf(g.now()).Add(30 * time.Minute)
	return req
}

// A transaction takes its time at the end of a bucket, is idle for nearly as long as it may,
// and then writes for nearly as long as it may: it ends 1.6 D after it began. Who claims
// before that in the next bucket must leave a marker: the window G is more than 2 D.
func TestProtocolWindowCoversTheLongestTransaction(t *testing.T) {
	t.Parallel()
	const (
		gate = 3
		d    = 2 * time.Second
	)
	for range 5 { // a busy machine may be too slow for it
		g := newStage(t, Timing{MaxStatement: d, MaxOffset: 500 * time.Millisecond})
		other := g.open()
		other.catalogReady(g)
		s, proxy := g.proxied("idemd.gate", fmt.Sprint(gate))
		s.catalogReady(g)
		key := g.key()
		req := g.ahead(key, "late")
		old := g.bucket()
		until := make(chan struct{})
		idle := proxy.Add(pgfault.Rule{Match: timeText, Times: 1, Do: pgfault.StallAfter(until)})
		g.nearlyAt(old.end(), 100*time.Millisecond)
		began := g.now()
		late := g.claim(s, req)
		idle.Wait(t, 1)
		openGate := g.shut(gate, old)
		g.past(began+(1500*time.Millisecond).Microseconds(), 0)
		close(until)
		// Now its time is good, and its statement is held before it writes.
		deadline := began + (2500 * time.Millisecond).Microseconds()
		for g.now() < deadline && g.held(gate, old) == 0 {
		}
		g.past(began+(2500*time.Millisecond).Microseconds(), 0)
		next := <-g.claim(other, claimOf(key, "next"))
		overlapped := g.held(gate, old) == 1
		openGate()
		got := <-late
		if len(g.rows(key)) != 1 {
			t.Fatalf("rows %+v; want one", g.places(key))
		}
		if overlapped {
			g.mustBeGranted(next)
			if got.Granted != nil {
				t.Fatalf("two winners: %s and %s", describe(next), describe(got))
			}
			return
		}
	}
	t.Fatal("the transactions never overlapped")
}

// What was read before the transaction is not what is locked in it: a late Complete came in
// between. It is replayed, and not taken over.
func TestProtocolDecidedAgainOnTheLockedRow(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	s, proxy := g.proxied()
	s.catalogReady(g)
	key := g.key()
	first := g.granted(other, claimOf(key, "first"))
	g.step(time.Minute) // lapsed
	held, resume := stall(t, proxy, lockText)
	late := g.claim(s, claimOf(key, "second"))
	held()
	if err := g.complete(other, key, "first", first.Fence, "done"); err != nil {
		t.Fatal(err)
	}
	resume()
	if got := <-late; got.err != nil || got.Completed == nil || string(got.Completed.Outcome.Body) != "done" {
		t.Fatalf("%s; want completed", describe(got))
	}
	g.oneRow(key)
}

// A move whose insert comes too late puts nothing into the home bucket. Then the old row must
// not have gone either.
func TestProtocolMoveIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	g.open()
	s, proxy := g.proxied()
	s.catalogReady(g)
	key := g.key()
	first := g.granted(s, claimOf(key, "first"))
	g.release(s, key, "first", first.Fence, store.EffectNone)
	g.step(15 * time.Minute)
	held, resume := stall(t, proxy, insertText)
	moving := g.claim(s, claimOf(key, "second"))
	held()
	g.shift((11 * time.Second).Microseconds()) // longer than a statement may run
	resume()
	second := g.mustBeGranted(<-moving)
	if row := g.oneRow(key); row.fence != second.Fence {
		t.Fatalf("the row has fence %d, granted was %d", row.fence, second.Fence)
	}
	if err := g.complete(s, key, "second", second.Fence, "done"); err != nil {
		t.Fatal(err)
	}
}

// An outcome that comes late, up to the attempt's limit, stays in the bucket of its grant. The
// bucket goes when it can be forgotten and not before, and the fence grows all the same.
func TestProtocolLateCompleteThenDrop(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	key, tooLate := g.key(), g.key()
	b := g.bucket()
	g.stepTo(b.end() - (2 * time.Second).Microseconds())
	granted := g.granted(s, claimOf(key, "late"))
	beyond := g.granted(s, claimOf(tooLate, "too late"))
	limit := granted.GrantedAt.Add(15 * time.Minute).UnixMicro()
	g.stepTo(limit - time.Second.Microseconds())
	answer, err := s.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "late", Fence: granted.Fence, Outcome: &store.Outcome{Body: []byte("done")}})
	if err != nil {
		t.Fatal(err)
	}
	g.stepTo(limit + time.Second.Microseconds())
	if err := g.complete(s, tooLate, "too late", beyond.Fence, "done"); !errors.Is(err, store.ErrAttemptTooLong) {
		t.Fatalf("complete beyond the attempt's limit: %v", err)
	}
	g.stepTo(answer.ExpiresAt.UnixMicro() - time.Second.Microseconds())
	g.maintain(s)
	if got := <-g.claim(s, claimOf(key, "repeat")); got.err != nil || got.Completed == nil || got.Completed.Fence != granted.Fence {
		t.Fatalf("%s; want completed until %v", describe(got), answer.ExpiresAt)
	}
	for g.exists(b) {
		g.step(14 * time.Minute)
		g.maintain(s)
		if g.now() > b.dropAfter()+time.Hour.Microseconds() {
			t.Fatal("the bucket is not dropped")
		}
	}
	again := g.granted(s, claimOf(key, "after the drop"))
	if again.Fence <= granted.Fence || again.AttemptNumber != 1 || again.PreviousFence != 0 {
		t.Fatalf("granted %+v after %+v", *again, *granted)
	}
}

// A key that waits for a person does so when its bucket goes: it has moved.
func TestProtocolLiveRowsMoveBeforeDrop(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	key := g.keyIn("hold")
	b := g.bucket()
	granted := g.granted(s, claimOf(key, "first"))
	for g.exists(b) {
		g.step(14 * time.Minute)
		g.maintain(s)
		if got := <-g.claim(s, claimOf(key, "second")); got.err != nil || got.Unresolved == nil || got.Unresolved.Fence != granted.Fence {
			t.Fatalf("%s; want unresolved", describe(got))
		}
		if rows := g.rows(key); len(rows) != 1 {
			t.Fatalf("rows %+v, want one", rows)
		}
		if g.now() > b.dropAfter()+time.Hour.Microseconds() {
			t.Fatal("the bucket is not dropped")
		}
	}
}

func (g *stage) maintain(s *Store) {
	g.Helper()
	if _, err := s.Maintain(g.Context()); err != nil {
		g.Fatal(err)
	}
}

func (g *stage) exists(b bucketID) (exists bool) {
	g.Helper()
	if err := g.conn.QueryRow(g.Context(), "SELECT to_regclass($1) IS NOT NULL", b.table("local")).Scan(&exists); err != nil {
		g.Fatal(err)
	}
	return exists
}

// The database's clock steps back by more than clocks may be apart. Nothing is done until it
// has caught up, also by a replica that has just started.
func TestProtocolDatabaseClockStepsBack(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	held, done := g.key(), g.key()
	grant := g.granted(s, claimOf(held, "holder"))
	if err := s.catalog.tell(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.shift(-(5 * time.Minute).Microseconds())
	restarted := open(t, g.dsn, g.options())
	defer closeStore(t, restarted)
	for name, s := range map[string]*Store{"a replica that saw it": s, "one that started later": restarted} {
		for what, err := range map[string]error{
			"claim":        (<-g.claim(s, claimOf(done, "early"))).err,
			"claim of one": (<-g.claim(s, claimOf(held, "early"))).err,
			"complete":     g.complete(s, held, "holder", grant.Fence, "done"),
		} {
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: %s while the clock stands back: %v, want unavailable", name, what, err)
			}
		}
		if _, err := g.lookup(s, held); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: lookup while the clock stands back: %v, want unavailable", name, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	g.shift((5 * time.Minute).Microseconds())
	g.mustBeGranted(g.patiently(s, claimOf(done, "early")))
	if err := g.complete(restarted, held, "holder", grant.Fence, "done"); err != nil {
		t.Fatal(err)
	}
}

// A small step back, within what clocks may be apart, changes nothing.
func TestProtocolDatabaseClockStepsBackALittle(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	g.granted(s, claimOf(g.key(), "a"))
	g.shift(-(400 * time.Millisecond).Microseconds())
	g.granted(s, claimOf(g.key(), "a"))
}

// Batches of claims, completions and releases of the same keys, from several replicas, each in
// another order and some in the window: all lock in one order, so that no two wait for each
// other.
func TestProtocolLocksInOneOrder(t *testing.T) {
	g := newStageOn(t, pgtest.New(t, pgtest.Fast, "deadlock_timeout='20ms'").NewDatabase(t), unhurried, 1)
	const replicas, keysAtOnce, rounds = 4, 128, 6
	var stores []*Store
	for range replicas {
		stores = append(stores, g.open())
	}
	b := g.bucket().next()
	g.stepTo(b.start + 1000)
	var answered atomic.Int64
	for range rounds {
		keys := make([]store.Key, keysAtOnce)
		for i := range keys {
			keys[i] = g.key()
		}
		fences := make([]int64, keysAtOnce)
		g.atOnce(stores, keys, func(s *Store) func() { return dam(s.batches.claims[store.TierHour]) }, func(s *Store, attempt string, i int) {
			if got := <-g.claim(s, claimOf(keys[i], attempt)); got.Granted != nil {
				fences[i] = got.Granted.Fence
			} else if got.err != nil {
				t.Error(describe(got))
			}
			answered.Add(1)
		})
		g.atOnce(stores, keys, func(s *Store) func() { return dam(s.batches.completes[store.TierHour]) }, func(s *Store, attempt string, i int) {
			_ = g.complete(s, keys[i], attempt, fences[i], "done") // one of them has the key
		})
		for _, key := range keys {
			if answer, err := g.lookup(stores[0], key); err != nil || answer.State != store.StateCompleted {
				t.Fatalf("%+v, %v; want completed", answer, err)
			}
		}
	}
	if want := int64(replicas * keysAtOnce * rounds); answered.Load() != want {
		t.Errorf("%d claims, want %d", answered.Load(), want)
	}
	for _, s := range stores {
		closeStore(t, s) // its sessions tell what they counted as they end
	}
	var deadlocks int
	g.eventually("the server has all counts", func() bool {
		var sessions int
		err := g.conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idemd'),
  (SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())`).Scan(&sessions, &deadlocks)
		return err == nil && sessions == 0
	})
	if deadlocks != 0 {
		t.Errorf("%d deadlocks, want none", deadlocks)
	}
}

// atOnce has every store do the same with every key, in one batch each, in orders of their own.
func (g *stage) atOnce(stores []*Store, keys []store.Key, hold func(*Store) func(), do func(s *Store, attempt string, i int)) {
	g.Helper()
	var (
		opens []func()
		doing sync.WaitGroup
		mu    sync.Mutex
		begun int
	)
	for n, s := range stores {
		opens = append(opens, hold(s))
		for _, i := range rand.Perm(len(keys)) {
			doing.Go(func() {
				mu.Lock()
				begun++
				mu.Unlock()
				do(s, fmt.Sprint("replica-", n), i)
			})
		}
	}
	g.eventually("all have begun", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return begun == len(stores)*len(keys)
	})
	for _, open := range opens {
		doing.Go(open)
	}
	doing.Wait()
}

// At a stricter isolation level a transaction's snapshot is as old as its beginning. What it is
// told of other transactions' ends must not be newer than that.
func TestProtocolSealAndSnapshotAtStricterLevels(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			g := newStageOn(t, pgtest.New(t, pgtest.Fast).NewDatabase(t), unhurried, 1)
			straddling, itsProxy := g.proxied()
			straddling.catalogReady(g)
			s, proxy := g.proxied("default_transaction_isolation", level)
			s.catalogReady(g)
			key := g.key()
			b := g.bucket().next()
			g.stepTo(b.start + 1000) // in the window, so that the claim has a transaction of its own
			itsCommit, commit := stall(t, itsProxy, commitText)
			early := g.claim(straddling, claimOf(key, "early"))
			itsCommit()
			g.hung = true
			g.stepTo(b.end() + (g.timing.window() + time.Second).Microseconds())
			until := make(chan struct{})
			rule := proxy.Add(pgfault.Rule{Match: timeText, Times: 1, Do: pgfault.StallAfter(until)})
			late := g.claim(s, g.ahead(key, "late"))
			rule.Wait(t, 1) // it has its snapshot
			commit()
			granted := g.mustBeGranted(<-early)
			g.sealed()
			close(until)
			got := <-late
			if got.Granted != nil && got.Granted.PreviousFence != granted.Fence {
				t.Errorf("two winners: %+v and %s", *granted, describe(got))
			}
			if rows := g.rows(key); len(rows) != 1 {
				t.Errorf("rows %+v, want one", rows)
			}
		})
	}
}
