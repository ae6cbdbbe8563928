package sqlstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// unhurried lets a test hold a statement for as long as a busy machine needs.
var unhurried = Timing{MaxStatement: 10 * time.Second, MaxOffset: 500 * time.Millisecond}

// straddler sends a claim that takes its time just before the bucket ends and is held before
// its snapshot. It returns when the bucket has ended.
func (g *stage) straddler(req store.ClaimRequest) (answer <-chan claimed, resume func(), old bucketID) {
	g.Helper()
	s, proxy := g.proxied()
	s.catalogReady(g)
	old = g.bucket()
	held, resume := stall(g.TB, proxy, claimText)
	g.nearlyAt(old.end(), 500*time.Millisecond)
	answer = g.claim(s, req)
	held()
	if now := g.now(); now >= old.end() {
		g.Fatalf("the machine is too slow: the claim was sent %v late", time.Duration(now-old.end())*time.Microsecond)
	}
	g.past(old.end(), 0)
	return answer, resume, old
}

// catalogReady has the store prepare its claim statement, so that the next one is not slow.
func (s *Store) catalogReady(g *stage) {
	g.Helper()
	g.granted(s, claimOf(g.key(), "warm"))
}

// Two claims of one key on the two sides of a bucket's end. The late one finds the marker (3).
func TestProtocolStraddlerMeetsMarker(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	key := g.key()
	late, resume, old := g.straddler(claimOf(key, "late"))
	g.granted(other, claimOf(key, "next"))
	resume()
	g.mustBeInProgress(<-late)
	if row := g.oneRow(key); row.bucket != old.next() {
		t.Fatalf("the row is in %v, want the next bucket after %v", row.bucket, old)
	}
	if places := g.places(key); len(places) != 2 || places[0].bucket != old || places[0].state != stateMoved {
		t.Fatalf("rows %+v, want a marker in the previous bucket", places)
	}
}

// The same when the early one's row comes first: the later one waits for it and loses.
func TestProtocolMarkerMeetsStraddler(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other, proxy := g.proxied()
	other.catalogReady(g)
	key := g.key()
	early, resumeEarly, old := g.straddler(claimOf(key, "early"))
	held, resume := stall(t, proxy, claimText) // its marker's statement has run, and is not committed
	next := g.claim(other, claimOf(g.key(), "other"))
	held()
	resume()
	g.mustBeGranted(<-next)
	resumeEarly()
	g.mustBeGranted(<-early)
	g.inProgress(other, claimOf(key, "next"))
	if row := g.oneRow(key); row.bucket != old {
		t.Fatalf("the row is in %v, want %v", row.bucket, old)
	}
}

// A statement is held inside, after its snapshot, while two buckets pass. Nobody leaves
// markers for it any more: it must find that it is late (1).
func TestProtocolStraddlerJumpsTwoBuckets(t *testing.T) {
	t.Parallel()
	const gate = 1
	g := newStage(t, unhurried)
	other := g.open()
	s := g.open("idemd.gate", "1", "idemd.late", "on")
	s.catalogReady(g)
	key := g.key()
	old := g.bucket()
	open := g.shut(gate, old)
	late := g.claim(s, claimOf(key, "late"))
	g.eventually("the claim is held", func() bool { return g.held(gate, old) == 1 })
	g.step(15 * time.Minute)
	g.step(15 * time.Minute)
	granted := g.granted(other, claimOf(key, "next"))
	if want := old.next().next(); bucketAt(store.TierHour, granted.Fence) != want {
		t.Fatalf("granted with fence %d, want one in %v", granted.Fence, want)
	}
	if n := g.held(gate, old); n != 1 {
		t.Fatalf("%d statements are held, want 1: nothing overlaps", n)
	}
	open()
	g.mustBeInProgress(<-late)
	g.oneRow(key)
}

// A key that moves from a bucket further back leaves a marker in the previous one, for the
// straddler that looks after it has moved (6): by a claim whose quick statement has left one
// already, and by one that has only the move.
func TestProtocolReleasedKeyMovesPastStraddler(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]func(g *stage, key store.Key) store.ClaimRequest{
		"after a quick statement": func(_ *stage, key store.Key) store.ClaimRequest { return claimOf(key, "next") },
		"at once":                 func(g *stage, key store.Key) store.ClaimRequest { return g.ahead(key, "next") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newStage(t, unhurried)
			other := g.open()
			key := g.key()
			first := g.granted(other, claimOf(key, "first"))
			g.release(other, key, "first", first.Fence, store.EffectNone)
			g.step(15 * time.Minute)
			late, resume, old := g.straddler(claimOf(key, "late"))
			next := g.granted(other, claim(g, key))
			if next.Fence <= first.Fence || next.AttemptNumber != 2 || bucketAt(store.TierHour, next.Fence) != old.next() {
				t.Fatalf("granted %+v after %+v", *next, *first)
			}
			resume()
			g.mustBeInProgress(<-late)
			g.oneRow(key)
		})
	}
}

// Markers must not be taken for rows: what is released behind one can be claimed again, in the
// window and after it, in this bucket and in later ones, and no straddler gets it.
func TestProtocolReleaseInWindow(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	key := g.key()
	late, resume, old := g.straddler(claimOf(key, "late"))
	var fence int64
	claimAgain := func(attempt string) {
		t.Helper()
		granted := g.granted(other, claimOf(key, attempt))
		if granted.Fence <= fence {
			t.Fatalf("fence %d after %d", granted.Fence, fence)
		}
		fence = granted.Fence
		if row := g.oneRow(key); row.fence != fence {
			t.Fatalf("the row has fence %d, want %d", row.fence, fence)
		}
	}
	claimAgain("in the window")
	g.release(other, key, "in the window", fence, store.EffectNone)
	claimAgain("again in the window")
	resume()
	g.mustBeInProgress(<-late)
	g.release(other, key, "again in the window", fence, store.EffectNone)
	g.step(g.timing.window())
	if g.bucket() != old.next() {
		t.Fatal("the bucket has ended already")
	}
	claimAgain("after the window")
	g.release(other, key, "after the window", fence, store.EffectNone)
	g.stepTo(old.next().end() + 1)
	claimAgain("in the next window")
	g.release(other, key, "in the next window", fence, store.EffectUnknown)
	g.step(15 * time.Minute)
	claimAgain("takeover in a later bucket")
	if err := g.complete(other, key, "takeover in a later bucket", fence, "done"); err != nil {
		t.Fatal(err)
	}
}

// A marker that a refused claim left over an older row is no row: what is completed is
// replayed, and what is released can be claimed.
func TestProtocolOrphanMarker(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	completed, released := g.key(), g.key()
	granted := g.granted(s, claimOf(completed, "first"))
	if err := g.complete(s, completed, "first", granted.Fence, "done"); err != nil {
		t.Fatal(err)
	}
	granted = g.granted(s, claimOf(released, "first"))
	g.release(s, released, "first", granted.Fence, store.EffectNone)
	middle := g.bucket().next()
	g.step(15 * time.Minute)
	g.mark(middle, completed)
	g.mark(middle, released)
	g.stepTo(middle.end() + 1000) // in the window, behind the marker
	for range 2 {
		got := <-g.claim(s, claimOf(completed, "second"))
		if got.err != nil || got.Completed == nil || string(got.Completed.Outcome.Body) != "done" {
			t.Fatalf("%s; want completed", describe(got))
		}
	}
	next := g.granted(s, claimOf(released, "second"))
	if next.Fence <= granted.Fence || next.AttemptNumber != 2 {
		t.Fatalf("granted %+v after %+v", *next, *granted)
	}
	g.oneRow(completed)
	g.oneRow(released)
}

// An older bucket's row keeps a key from being granted again, also after the window (1).
func TestProtocolOlderBucketsAreSearched(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	key := g.key()
	granted := g.granted(s, claimOf(key, "first"))
	if err := g.complete(s, key, "first", granted.Fence, "done"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		g.step(14 * time.Minute)
		if got := <-g.claim(s, claimOf(key, "second")); got.err != nil || got.Completed == nil {
			t.Fatalf("%s; want completed", describe(got))
		}
		g.oneRow(key)
	}
}

// A clock that is ahead puts a row into the next bucket before others are there. They find
// it (4), and grant nothing themselves.
func TestProtocolNextBucketIsSearched(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s, ahead := g.open(), g.open("idemd.skew", "450ms")
	key := g.key()
	s.catalogReady(g)
	ahead.catalogReady(g)
	old := g.bucket()
	g.nearlyAt(old.end(), 430*time.Millisecond)
	granted := g.granted(ahead, claimOf(key, "ahead"))
	answer, err := g.lookup(s, key)
	got := <-g.claim(s, claimOf(key, "behind"))
	if g.bucket() != old {
		t.Fatal("the machine is too slow: the bucket has ended")
	}
	if bucketAt(store.TierHour, granted.Fence) != old.next() {
		t.Fatalf("granted %+v, want it in the next bucket", *granted)
	}
	if err != nil || answer.Fence != granted.Fence {
		t.Fatalf("lookup: %+v, %v; want fence %d", answer, err, granted.Fence)
	}
	g.mustBeInProgress(got)
	g.oneRow(key)
}

// The replica's own clock is off by two buckets, either way: the statement is refused by its
// time, and the next one is right. If its own time already says that nothing can be granted it
// refuses, and learns the time at once. Nothing is granted into another time's bucket (1), and
// nothing is overlooked (4).
func TestProtocolReplicaClockOff(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	for range 3 {
		g.step(15 * time.Minute)
	}
	held := g.key()
	granted := g.granted(s, claimOf(held, "first"))
	for _, by := range []time.Duration{-30 * time.Minute, -15 * time.Minute, 15 * time.Minute, 30 * time.Minute} {
		key := g.key()
		off(s, by)
		grant := g.mustBeGranted(g.patiently(s, claimOf(key, "a")))
		if row := g.oneRow(key); row.bucket != g.bucket() || row.fence != grant.Fence {
			t.Fatalf("off by %v: the row is %+v, want it in %v with fence %d", by, row, g.bucket(), grant.Fence)
		}
		off(s, by)
		if err := g.complete(s, key, "a", grant.Fence, "done"); err != nil {
			t.Fatalf("off by %v: %v", by, err)
		}
		off(s, by)
		if answer, err := g.lookup(s, held); err != nil || answer.Fence != granted.Fence {
			t.Fatalf("off by %v: lookup: %+v, %v", by, answer, err)
		}
		off(s, by)
		g.mustBeInProgress(g.patiently(s, claimOf(held, "second")))
	}
}

// The holder's own attempt comes back, after a lapse and after a release, across buckets.
func TestProtocolOwnAttemptAgain(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	lapsed, released := g.key(), g.key()
	first := g.granted(s, claimOf(lapsed, "own"))
	other := g.granted(s, claimOf(released, "own"))
	g.release(s, released, "own", other.Fence, store.EffectNone)
	for _, d := range []time.Duration{time.Minute, 8 * time.Minute} {
		g.step(d)
		again := g.granted(s, claimOf(lapsed, "own"))
		if again.Fence != first.Fence || again.AttemptNumber != 1 || again.LeaseRemaining != 30*time.Second {
			t.Fatalf("granted again %+v, first %+v", *again, *first)
		}
		if _, err := s.Claim(t.Context(), claimOf(released, "own")); !errors.Is(err, store.ErrStaleAttempt) {
			t.Fatalf("claim by an attempt that released: %v", err)
		}
		g.oneRow(lapsed)
		g.oneRow(released)
	}
	if g.bucket() == bucketAt(store.TierHour, first.Fence) {
		t.Fatal("no bucket has passed")
	}
}

// A released key whose fence is the last of its bucket is claimed again: the new fence lies in
// the next bucket as a time. Wherever the row is, its holder finds it, and so do others.
func TestProtocolFenceAtTheEnd(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	key := g.key()
	granted := g.granted(s, claimOf(key, "first"))
	g.release(s, key, "first", granted.Fence, store.EffectNone)
	b, digest := g.bucket(), key.Digest()
	execute(t, g.conn, "UPDATE "+b.table("local")+" SET fence = $2 WHERE digest = $1", digest[:], b.end()-1)
	fence := b.end() - 1
	for i, attempt := range []string{"second", "third"} {
		next := g.granted(s, claimOf(key, attempt))
		if next.Fence != fence+1 || next.PreviousFence != fence {
			t.Fatalf("granted %+v, want fence %d", *next, fence+1)
		}
		fence = next.Fence
		if _, err := s.Renew(t.Context(), store.RenewRequest{Key: key, AttemptID: attempt, Fence: fence, Lease: time.Minute}); err != nil {
			t.Fatal(err)
		}
		g.inProgress(s, claimOf(key, "other"))
		if i == 0 {
			g.release(s, key, attempt, fence, store.EffectNone)
		}
	}
	g.stepTo(b.end() + 1000)
	if err := g.complete(s, key, "third", fence, "done"); err != nil {
		t.Fatal(err)
	}
	if got := <-g.claim(s, claimOf(key, "fourth")); got.Completed == nil || got.Completed.Fence != fence {
		t.Fatalf("%s; want completed", describe(got))
	}
	if rows := g.rows(key); len(rows) != 1 {
		t.Fatalf("rows %+v, want one", rows)
	}
}

// A claim's transaction is idle past the window, holding its row uncommitted. Others wait for it
// or are refused, in the next bucket also after the window (9), and in the one after that.
func TestProtocolSealOfIdleTransaction(t *testing.T) {
	t.Parallel()
	g := newStageOn(t, pgtest.New(t, pgtest.Fast).NewDatabase(t), unhurried, 1)
	other := g.open()
	s, proxy := g.proxied()
	s.catalogReady(g)
	key := g.key()
	b := g.bucket().next()
	g.stepTo(b.start + 1000) // in the window, so that the claim has a transaction of its own
	held, resume := stall(t, proxy, commitText)
	idle := g.claim(s, claimOf(key, "idle"))
	held()
	g.hung = true
	g.stepTo(b.end() + (g.timing.window() + time.Second).Microseconds()) // past the next one's window
	g.refusedWhile(other, key)
	resume()
	granted := g.mustBeGranted(<-idle)
	g.sealed()
	// Its lease has lapsed meanwhile.
	if next := g.granted(other, claimOf(key, "next")); next.PreviousFence != granted.Fence || !next.Unsettled || next.AttemptNumber != 2 {
		t.Fatalf("granted %+v after %+v, want a takeover", *next, *granted)
	}
	g.oneRow(key)
	g.granted(other, claimOf(g.key(), "after"))
}

// refusedWhile checks that a claim that meets an unfinished transaction is not granted.
func (g *stage) refusedWhile(s *Store, key store.Key) {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), 1500*time.Millisecond)
	defer cancel()
	answer, err := s.Claim(ctx, claimOf(key, "impatient"))
	if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		g.Fatalf("%s; want it refused while another transaction is under way", describe(claimed{answer, err}))
	}
}

// A COMMIT waits for a replica that is not there: no timeout ends it, nobody sees its row, and
// it is done in the end. Meanwhile the key is nobody's, also after the window (9), and two
// buckets later nothing at all is granted.
func TestProtocolSealOfWaitingCommit(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t, pgtest.Durable)
	g := newStageOn(t, with(server.NewDatabase(t), "synchronous_commit", "local"), unhurried, 1) // the client must not give up the commit
	other := g.open()
	other.catalogReady(g)
	execute(t, g.conn, "ALTER SYSTEM SET synchronous_standby_names = 'missing'")
	execute(t, g.conn, "SELECT pg_reload_conf()")
	t.Cleanup(func() { // or a commit of the end of a test that failed waits too
		_, _ = g.conn.Exec(context.Background(), "ALTER SYSTEM RESET synchronous_standby_names")
		_, _ = g.conn.Exec(context.Background(), "SELECT pg_reload_conf()")
	})
	g.eventually("the setting is in force", func() bool {
		var names string
		err := g.conn.QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&names)
		return err == nil && names == "missing"
	})
	s := g.open("synchronous_commit", "on")
	key, free := g.key(), g.key()
	old := g.bucket()
	waiting := g.claim(s, claimOf(key, "waiting"))
	const commitWaits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'INSERT INTO %(digest, key, state%'"
	var pid int
	g.eventually("the commit waits for the replica", func() bool { return g.conn.QueryRow(t.Context(), commitWaits).Scan(&pid) == nil })
	g.stores, g.hung = g.stores[:1], true
	g.stepTo(old.end() + (g.timing.window() + time.Second).Microseconds())
	g.refusedWhile(other, key)
	g.granted(other, claimOf(free, "free")) // with a marker, as in the window
	g.step(15 * time.Minute)
	if got := <-g.claim(other, claimOf(g.key(), "free")); !errors.Is(got.err, store.ErrUnavailable) {
		t.Fatalf("%s; want unavailable two buckets after a transaction that has not ended", describe(got))
	}
	var now int
	if err := g.conn.QueryRow(t.Context(), commitWaits+" LIMIT 1").Scan(&now); err != nil || now != pid {
		t.Fatalf("the commit does not wait any more: %v; nothing overlaps", err)
	}
	execute(t, g.conn, "ALTER SYSTEM RESET synchronous_standby_names")
	execute(t, g.conn, "SELECT pg_reload_conf()") // commits go on
	g.sealed()
	g.eventually("claims go on", func() bool { _, err := other.Claim(t.Context(), claimOf(free, "x")); return err == nil })
	if got := <-g.claim(other, claimOf(key, "waiting")); got.err == nil && got.Granted == nil {
		t.Fatalf("%s; want it granted to the attempt that waited", describe(got))
	}
	<-waiting
	g.oneRow(key)
}
