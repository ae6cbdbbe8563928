package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
)

// faultsOf are what can become of a statement on its way. After each the statement may have
// been carried out or not.
func faultsOf() map[string]pgfault.Action {
	faults := map[string]pgfault.Action{
		"reset before": pgfault.ResetBefore(), "reset after": pgfault.ResetAfter(),
	}
	for _, code := range []string{"40003", "57014", "57P01", "40001"} {
		faults[code+" before"] = pgfault.Fail(code)
		faults[code+" after"] = pgfault.FailAfter(code)
	}
	delete(faults, "40001 after") // says that nothing was done
	return faults
}

// Each statement of each operation meets each fault once. The operation finds out by itself what
// became of it: it succeeds, once, and when it is sent again it gets the same answer.
func TestProtocolFaultOnEachStatement(t *testing.T) {
	t.Parallel()
	g := newStage(t, Timing{MaxStatement: time.Minute}) // the window must last for all that is done in it
	other := g.open()
	s, proxy := g.proxied()
	fired := 0
	with := func(what *regexp.Regexp, name string, do func()) {
		for fault, action := range faultsOf() {
			rule := proxy.Add(pgfault.Rule{Match: what, Times: 1, Do: action})
			do()
			proxy.Remove(rule)
			fired += rule.Fired()
			if rule.Fired() != 1 {
				t.Errorf("%s: %s has not met it", name, fault)
			}
			if t.Failed() {
				t.Fatalf("%s: %s", name, fault)
			}
		}
	}
	claimTwice := func(req store.ClaimRequest) *store.Granted {
		t.Helper()
		first := g.granted(s, req)
		if again := g.granted(s, req); again.Fence != first.Fence || again.AttemptNumber != first.AttemptNumber {
			t.Errorf("sent again: %+v, first %+v", *again, *first)
		}
		g.inProgress(other, claimOf(req.Key, "other"))
		g.oneRow(req.Key)
		return first
	}
	with(claimText, "claim", func() { claimTwice(claimOf(g.key(), "own")) })
	with(insertText, "claim with an intent time", func() { claimTwice(g.ahead(g.key(), "own")) })
	takeover := func() {
		key := g.key()
		first := g.granted(other, claimOf(key, "first"))
		if _, err := other.Release(t.Context(), store.ReleaseRequest{Key: key, AttemptID: "first", Fence: first.Fence, Effect: store.EffectUnknown}); err != nil {
			t.Fatal(err)
		}
		if next := claimTwice(claimOf(key, "own")); next.PreviousFence != first.Fence || next.AttemptNumber != 2 || !next.Unsettled {
			t.Errorf("took over %+v, got %+v", *first, *next)
		}
	}
	with(lockText, "takeover, lock", takeover)
	with(commitText, "takeover, commit", takeover)

	var key store.Key
	var grant *store.Granted
	hold := func() { key = g.key(); grant = g.granted(other, claimOf(key, "own")) }
	complete, renew, release := regexp.MustCompile(`SET state = 2`), regexp.MustCompile(`SET lease_end`), regexp.MustCompile(`SET state = 3`)
	with(complete, "complete", func() {
		hold()
		for range 2 {
			if err := g.complete(s, key, "own", grant.Fence, "done"); err != nil {
				t.Error(err)
			}
		}
		if got := <-g.claim(other, claimOf(key, "other")); got.Completed == nil || got.Completed.Fence != grant.Fence {
			t.Errorf("%s; want completed", describe(got))
		}
	})
	with(renew, "renew", func() {
		hold()
		answer, err := s.Renew(t.Context(), store.RenewRequest{Key: key, AttemptID: "own", Fence: grant.Fence, Lease: 5 * time.Minute})
		if err != nil || answer.LeaseRemaining < 4*time.Minute {
			t.Errorf("%+v, %v", answer, err)
		}
	})
	with(release, "release", func() {
		hold()
		for range 2 {
			g.release(s, key, "own", grant.Fence, store.EffectNone)
		}
		g.granted(other, claimOf(key, "other"))
	})
	with(findText, "lookup", func() {
		hold()
		if answer, err := g.lookup(s, key); err != nil || answer.Fence != grant.Fence {
			t.Errorf("%+v, %v", answer, err)
		}
	})

	// In the window, and with a move out of a bucket further back.
	b := g.bucket()
	var released []store.Key
	for range 5 * len(faultsOf()) {
		key := g.key()
		grant := g.granted(other, claimOf(key, "first"))
		g.release(other, key, "first", grant.Fence, store.EffectNone)
		released = append(released, key)
	}
	move := func() { key, released = released[0], released[1:]; claimTwice(claimOf(key, "own")) }
	g.step(15 * time.Minute)
	g.stepTo(b.next().end() + 1000)
	with(markerText, "claim in the window, marker", func() { claimTwice(claimOf(g.key(), "own")) })
	with(commitText, "claim in the window, commit", func() { claimTwice(claimOf(g.key(), "own")) })
	with(moveText, "move", move)
	with(insertText, "move, insert", move)
	with(commitText, "move, commit", move)
	if home := g.bucket(); home != b.next().next() || g.now() > home.start+g.timing.window().Microseconds() {
		t.Error("the window has ended: nothing was tried in it")
	}
	t.Logf("%d faults", fired)
}

// A COMMIT that fails with whatever is no grant, and nothing is left of it.
func TestProtocolCommitFails(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	s, proxy := g.proxied()
	key := g.key()
	rule := proxy.Add(pgfault.Rule{Match: commitText, Do: pgfault.Fail("23505")})
	if got := <-g.claim(s, g.ahead(key, "own")); !errors.Is(got.err, store.ErrUnavailable) {
		t.Fatalf("%s; want unavailable", describe(got))
	}
	if rule.Fired() == 0 {
		t.Fatal("no COMMIT was sent")
	}
	proxy.Clear()
	if rows := g.rows(key); len(rows) != 0 {
		t.Fatalf("rows %+v, want none", rows)
	}
	g.granted(other, claimOf(key, "other"))
}

// A hundred attempts want a lapsed key at once, from several replicas, again and again: each fence
// has one owner.
func TestProtocolHundredTakeovers(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	stores := []*Store{g.open(), g.open(), g.open()}
	key := g.key()
	last := g.granted(stores[0], claimOf(key, "first"))
	for round := range 4 {
		g.step(time.Minute)
		var (
			mu      sync.Mutex
			granted []*store.Granted
			claims  sync.WaitGroup
		)
		for i := range 100 {
			claims.Go(func() {
				got := g.patiently(stores[i%3], claimOf(key, fmt.Sprint(round, "-", i)))
				mu.Lock()
				defer mu.Unlock()
				if got.Granted != nil {
					granted = append(granted, got.Granted)
				} else if got.InProgress == nil {
					t.Error(describe(got))
				}
			})
		}
		claims.Wait()
		if len(granted) != 1 || granted[0].PreviousFence != last.Fence || granted[0].Fence <= last.Fence {
			t.Fatalf("%d of 100 took over %d: want one", len(granted), last.Fence)
		}
		last = granted[0]
	}
}

// A takeover waits for a lock on the row for longer than its lease is. What it is granted is
// counted from its own time, and is lapsed for others as soon as that has passed.
func TestProtocolClaimBlockedBeyondItsLease(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	key := g.key()
	digest := key.Digest()
	first := g.granted(s, claimOf(key, "first"))
	g.step(time.Minute)
	execute(t, g.gates, "BEGIN")
	execute(t, g.gates, "SELECT 1 FROM "+g.bucket().table("local")+" WHERE digest = $1 FOR UPDATE", digest[:])
	req := claimOf(key, "second")
	req.Lease = time.Second
	blocked := g.claim(s, req)
	g.eventually("the claim waits for the row", func() bool {
		var n int
		err := g.conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FOR UPDATE OF r%' AND datname = current_database()").Scan(&n)
		return err == nil && n == 1
	})
	g.past(g.now()+(1200*time.Millisecond).Microseconds(), 0)
	execute(t, g.gates, "COMMIT")
	second := g.mustBeGranted(<-blocked)
	third := g.granted(s, claimOf(key, "third"))
	if second.PreviousFence != first.Fence || third.PreviousFence != second.Fence || third.GrantedAt.Before(second.LeaseExpiresAt) {
		t.Fatalf("granted %+v, then %+v", *second, *third)
	}
}

// The next bucket is missing: claims that could need it are refused, and go on when it is there.
func TestProtocolNextBucketMissing(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	key := g.key()
	g.granted(s, claimOf(key, "first"))
	var last bucketID
	for _, b := range g.tables() {
		last = b
	}
	g.shift(last.end() - g.now() - time.Second.Microseconds())
	for _, b := range []bool{false, true} { // at the last one's end, and after it
		if b {
			g.shift((2 * time.Second).Microseconds())
		}
		if err := s.catalog.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := <-g.claim(s, claimOf(g.key(), "early")); !errors.Is(got.err, store.ErrUnavailable) {
				t.Fatalf("%s; want unavailable without a bucket", describe(got))
			}
		}
	}
	g.settle()
	g.sealed()
	g.granted(s, claimOf(g.key(), "late"))
}

// A statement that makes a table hangs. Claims go on for as long as there are buckets, are
// refused then, and go on when it is done.
func TestProtocolDefinitionHangs(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s, proxy := g.proxied()
	until := make(chan struct{})
	rule := proxy.Add(pgfault.Rule{Match: regexp.MustCompile(`^CREATE TABLE`), Do: pgfault.Stall(until)})
	pass := func() {
		t.Helper()
		g.shift((15 * time.Minute).Microseconds())
		if err := s.catalog.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.sealed()
	}
	pass()
	maintained := make(chan error, 1)
	go func() {
		_, err := s.Maintain(t.Context())
		maintained <- err
	}()
	rule.Wait(t, 1)
	g.granted(s, claimOf(g.key(), "there are buckets"))
	pass()
	pass()
	if got := <-g.claim(s, claimOf(g.key(), "there is none")); !errors.Is(got.err, store.ErrUnavailable) {
		t.Fatalf("%s; want unavailable without a bucket", describe(got))
	}
	close(until)
	if err := <-maintained; err != nil {
		t.Logf("what hung made too few: %v", err)
	}
	g.settle()
	g.sealed()
	g.granted(s, claimOf(g.key(), "there are buckets again"))
}

// Lookups go on while buckets pass, are retired and dropped.
func TestProtocolDropDuringLookups(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s, keeper := g.open(), g.open()
	kept, gone := g.keyIn("hold"), g.key()
	fence := g.granted(s, claimOf(kept, "first")).Fence
	g.granted(s, claimOf(gone, "first"))
	first := g.bucket()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		lookups sync.WaitGroup
		n       atomic.Int64
	)
	for range 4 {
		lookups.Go(func() {
			for ctx.Err() == nil {
				answer, err := g.lookup(s, kept)
				if errors.Is(err, store.ErrUnavailable) {
					continue // the clock jumps past the buckets that there are
				}
				if err != nil || answer.Fence != fence {
					t.Errorf("lookup: %+v, %v; want fence %d", answer, err, fence)
				}
				if _, err := g.lookup(s, gone); err != nil && !errors.Is(err, store.ErrKeyNotFound) && !errors.Is(err, store.ErrUnavailable) {
					t.Error(err)
				}
				n.Add(1)
			}
		})
	}
	for g.exists(first) && !t.Failed() {
		before := n.Load()
		g.step(10 * time.Minute)
		g.maintain(keeper)
		g.eventually("lookups go on", func() bool { return n.Load() > before+5 || t.Failed() })
	}
	cancel()
	lookups.Wait()
	if rows := g.rows(kept); len(rows) != 1 || rows[0].bucket == first {
		t.Errorf("rows %+v, want one that has moved", rows)
	}
}

// Large outcomes under contention: every repeat gets all of it.
func TestProtocolLargeOutcomes(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	stores := []*Store{g.open(), g.open()}
	var all sync.WaitGroup
	for k := range 6 {
		key, body := g.key(), bytes.Repeat([]byte{byte(k)}, 100<<10)
		grant := g.granted(stores[0], claimOf(key, "own"))
		for i := range 12 {
			all.Go(func() {
				_, err := stores[i%2].Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "own", Fence: grant.Fence, Outcome: &store.Outcome{Body: body}})
				if err != nil {
					t.Error(err)
				}
				got := <-g.claim(stores[(i+1)%2], claimOf(key, "other"))
				if got.err != nil || got.Completed == nil || !bytes.Equal(got.Completed.Outcome.Body, body) {
					t.Errorf("%v: not the outcome", got.err)
				}
			})
		}
	}
	all.Wait()
}

// Nobody answers: connections are refused as a node drains, or all are held by statements that
// hang. Callers get an answer in bounded time, never a grant, and it goes on afterwards.
func TestProtocolDatabaseAway(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]func(until <-chan struct{}) []pgfault.Rule{
		"draining": func(<-chan struct{}) []pgfault.Rule {
			return []pgfault.Rule{{Connect: true, Do: pgfault.Fail("57P01")}, {Do: pgfault.Fail("57P01")}}
		},
		"all connections hang": func(until <-chan struct{}) []pgfault.Rule {
			return []pgfault.Rule{{Do: pgfault.Stall(until)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newStage(t, Timing{MaxStatement: time.Second, MaxOffset: 500 * time.Millisecond})
			g.open()
			s, proxy := g.proxied()
			held := g.key()
			grant := g.granted(s, claimOf(held, "own"))
			until := make(chan struct{})
			for _, rule := range rules(until) {
				proxy.Add(rule)
			}
			var all sync.WaitGroup
			for i := range 200 {
				key := g.key()
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					began := time.Now()
					var err error
					if i%2 == 0 {
						_, err = s.Claim(ctx, claimOf(key, "own"))
					} else {
						_, err = s.Lookup(ctx, store.LookupRequest{Key: held})
					}
					if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v; want unavailable", err)
					}
					if took := time.Since(began); took > 5*time.Second {
						t.Errorf("an answer took %v", took)
					}
				})
			}
			all.Wait()
			proxy.Clear()
			close(until)
			g.mustBeGranted(g.patiently(s, claimOf(g.key(), "after")))
			g.eventually("the holder completes", func() bool { return g.complete(s, held, "own", grant.Fence, "done") == nil })
		})
	}
}
