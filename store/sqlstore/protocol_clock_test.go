package sqlstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// quiet keeps a replica from hearing of the catalog and from telling the time.
func quiet(s *Store) { s.catalog.reading <- struct{}{} }

// A grant was made past a bucket's window, and the database's clock steps back into the bucket
// before. A replica that has heard nothing meanwhile does not grant the key there: the
// database has been told the time before (10).
func TestProtocolStepBackUnheard(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slept bool // the replica's monotonic clock did not go on either
		tells bool // the replica that grants can tell the database the time
	}{
		"paused":               {tells: true},
		"slept":                {tells: true, slept: true},
		"slept, and not told":  {slept: true},
		"paused, and not told": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newStage(t, Timing{})
			a := g.open()
			var ahead atomic.Int64
			opts := g.options()
			real := opts.Monotonic
			opts.Monotonic = func() time.Duration { return real() + time.Duration(ahead.Load()) }
			b := open(t, g.dsn, opts)
			t.Cleanup(func() { closeStore(t, b) })
			g.stores = append(g.stores, b)
			next := g.bucket().next()
			g.stepTo(next.start - time.Second.Microseconds())
			quiet(b)
			if !c.tells {
				quiet(a)
			}
			key := g.key()
			pass := a.opts.Timing.window() + 1500*time.Millisecond
			g.shift(pass.Microseconds())
			if !c.slept {
				ahead.Store(int64(pass))
			}
			if c.tells {
				if err := a.catalog.refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else if _, err := g.lookup(a, g.key()); !errors.Is(err, store.ErrKeyNotFound) { // it sees the time
				t.Fatal(err)
			}
			patience := time.Minute
			if !c.tells {
				patience = time.Second
			}
			bounded, cancel := context.WithTimeout(t.Context(), patience) // no mark counts before the time is told
			defer cancel()
			g.eventually("the seal is reached, if it may be", func() bool {
				pending, err := a.seal.advance(bounded)
				return err == nil && !pending || !c.tells && bounded.Err() != nil
			})
			granted := g.granted(a, claimOf(key, "a"))
			marked := len(g.places(key)) > 1
			if bucketAt(store.TierHour, granted.Fence) != next || marked == c.tells {
				t.Fatalf("the key is at %+v; want it in %v, with a marker before it: %v", g.places(key), next, !c.tells)
			}
			g.shift(-(pass + 500*time.Millisecond).Microseconds())
			got := <-g.claim(b, claimOf(key, "b"))
			if got.Granted != nil {
				t.Fatalf("granted a second time: %+v", g.places(key))
			}
			if c.tells && !errors.Is(got.err, store.ErrUnavailable) {
				t.Fatalf("%s; want unavailable while the clock stands back", describe(got))
			}
			g.oneRow(key)
		})
	}
}

// A mark for the seal is of no use before the database has been told the time: if the clock
// then stepped back, transactions with an earlier time could begin behind it.
func TestSealWaitsUntilTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	next := bucketAt(store.TierHour, began).next()
	past := next.start + s.seal.window
	r.set(past + 1)
	s.clock.saw(past + 1)
	_, told, err := s.seal.takeMark(t.Context())
	r.must(err)
	wantEqual(t, "told before a mark", told, false)
	for pending := true; pending; {
		pending, err = s.seal.advance(t.Context())
		r.must(err)
	}
	wantEqual(t, "sealed", s.seal.upTo(), past+1)
	wantEqual(t, "told", s.clock.newestTold(), past+1)
}

// A machine sleeps, and its own clock does not count that. It acts neither on the registry nor
// on the namespaces as they were before.
func TestOldCopyAfterSleep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	awake, slept := r.replica(), r.replica()
	claim := func(id string) error {
		_, err := slept.Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: id}, AttemptID: "a"})
		return err
	}
	r.must(claim("before"))
	ns, err := awake.GetNamespace(t.Context(), store.DefaultNamespace)
	r.must(err)
	r.advance(copyLag)
	ns.RecoveryFloor = r.now()
	_, err = awake.UpdateNamespace(t.Context(), ns)
	r.must(err)
	wantError(t, "a claim on waking up", claim("after"), store.ErrUnknownHistory)

	// A claim that goes by a transaction, because of its retention, too.
	_, err = awake.LiftRecovery(t.Context(), store.LiftRecoveryRequest{Namespace: ns.Name, LeasesEnded: true, Reason: "all settled"})
	r.must(err)
	r.must(slept.catalog.refresh(t.Context()))
	r.must(claim("again"))
	r.advance(copyLag)
	ns.RecoveryFloor = r.now()
	_, err = awake.UpdateNamespace(t.Context(), ns)
	r.must(err)
	wall := r.now().Add(30 * time.Second)
	slept.opts.Wall = func() time.Time { return wall }
	_, err = slept.Claim(t.Context(), store.ClaimRequest{
		Key: store.Key{Namespace: store.DefaultNamespace, ID: "written"}, AttemptID: "a", IntentTime: r.now(),
	})
	wantError(t, "a claim by a transaction", err, store.ErrUnknownHistory)
}

// A transaction waits, and what it then reads behind the lock is newer than its own time. It
// decides at no time before what it read.
func TestProtocolRowNewerThanTheTransaction(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	a := g.open()
	b, p := g.proxied()
	key := g.key()
	first := g.granted(a, claimOf(key, "a"))
	g.release(a, key, "a", first.Fence, store.EffectUnknown)
	held, resume := stall(t, p, lockText)
	done := g.claim(b, claimOf(key, "b"))
	held()
	g.shift((400 * time.Millisecond).Microseconds()) // a node that is ahead
	if err := g.complete(a, key, "a", first.Fence, "done"); err != nil {
		t.Fatal(err)
	}
	g.shift(-(400 * time.Millisecond).Microseconds())
	resume()
	got := <-done
	if got.err != nil || got.Completed == nil || got.Completed.Age != 0 {
		t.Fatalf("%s; want completed, of age 0", describe(got))
	}
	inspection, err := a.InspectRecord(t.Context(), key)
	if err != nil || inspection.Now.Before(inspection.Record.EndedAt) {
		t.Fatalf("inspected at %v, which is before %+v: %v", inspection.Now, inspection.Record, err)
	}
}
