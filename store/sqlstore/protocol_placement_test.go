package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

var (
	completeText = regexp.MustCompile(`SET state = 2, ended_at`)
	putText      = regexp.MustCompile(`^INSERT INTO \S+ AS r`)
)

// place gives namespace "hour" a placement.
func (g *stage) place(s *Store, epoch, revision int64, phase store.MovePhase) store.Placed {
	g.Helper()
	placed, err := s.PlaceNamespace(g.Context(), "hour", placementOf(epoch, revision, phase))
	if err != nil {
		g.Fatal(err)
	}
	return placed
}

// placed claims under epoch 1.
func placed(req store.ClaimRequest) store.ClaimRequest {
	req.Epoch = 1
	return req
}

// completing sends a Complete under epoch 1 and does not wait for the answer.
func (g *stage) completing(s *Store, key store.Key, fence int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.Complete(g.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{Body: []byte("late")}, Epoch: 1})
		done <- err
	}()
	return done
}

// A Complete is on its way when the namespace is sealed, and reaches the database when the
// seal is in force. It changes nothing any more.
func TestProtocolCompleteOnItsWayToTheSeal(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	s, proxy := g.proxied()
	g.place(other, 1, 1, 0)
	g.settle()
	key := g.key()
	granted := g.granted(s, placed(claimOf(key, "a")))
	arrived, resume := stall(t, proxy, completeText)
	done := g.completing(s, key, granted.Fence)
	arrived()
	sealed := g.place(other, 1, 2, store.MoveSealed)
	g.stepTo(sealed.InForce.UnixMicro())
	resume()
	if err := <-done; !errors.Is(err, store.ErrNamespaceMoving) {
		t.Fatalf("complete: %v", err)
	}
	if row := g.oneRow(key); row.state != int(store.StateInProgress) {
		t.Fatalf("the row is %+v", row)
	}
}

// Two Completes share a statement. One was prepared before its namespace was sealed, and by the
// time that is in force the other was.
func TestProtocolOneOfABatchIsTooOld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s, other := r.replica(), r.replica()
	r.placed(other)
	_, err := other.CreateNamespace(t.Context(), store.Namespace{Name: "neighbour", Retention: time.Hour})
	r.must(err)
	r.must(s.catalog.refresh(t.Context()))
	old := r.hold(s, 1, "old")
	fresh := held{key: store.Key{Namespace: "neighbour", ID: "fresh"}}
	fresh.fence = r.grant(s, store.ClaimRequest{Key: fresh.key, AttemptID: "a"})
	batches := s.batches.completes[store.TierHour]
	let := dam(batches)
	waiting := func(h held, epoch int64, n int) <-chan error {
		done := make(chan error, 1)
		go func() { done <- r.completeHeld(s, h, epoch) }()
		for waitingIn(batches) < n {
			runtime.Gosched()
		}
		return done
	}
	late := waiting(old, 1, 1)
	r.set(r.place(other, 1, 2, store.MoveSealed).InForce.UnixMicro())
	r.must(s.catalog.refresh(t.Context()))
	good := waiting(fresh, 0, 2)
	let()
	wantError(t, "the old one", <-late, store.ErrNamespaceMoving)
	r.must(<-good)
	r.unchanged(s, old.key, func() { wantError(t, "the old one again", r.completeHeld(s, old, 1), store.ErrNamespaceMoving) })
}

// A Lookup is slow, and its process hears meanwhile that the keys have moved. What it then
// reads is not answered by what it knew before.
func TestProtocolLookupOnItsWayAtTheFlip(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	s, proxy := g.proxied()
	g.place(other, 1, 1, 0)
	g.settle()
	key := g.key()
	g.granted(s, placed(claimOf(key, "a")))
	arrived, resume := stall(t, proxy, findText)
	done := make(chan error, 1)
	go func() {
		_, err := s.Lookup(g.Context(), store.LookupRequest{Key: key, Fingerprint: store.Fingerprint{Version: 1, Digest: "fp"}, Epoch: 1})
		done <- err
	}()
	arrived()
	flipped := g.place(other, 2, 2, store.MoveFlipped)
	g.stepTo(flipped.InForce.UnixMicro())
	resume()
	if err := <-done; !errors.Is(err, store.ErrWrongRegion) {
		t.Fatalf("lookup: %v", err)
	}
}

// A statement begins just before its copy of the namespace is too old, and runs for as long as
// it may. When the seal is said to be in force it has ended.
func TestProtocolSealCoversTheLongestStatement(t *testing.T) {
	t.Parallel()
	const gate = 3
	for range 5 { // the copy may be read anew at the wrong moment
		g := newStage(t, Timing{MaxStatement: time.Second, MaxOffset: 500 * time.Millisecond})
		other, s := g.open(), g.open("idemd.gate", fmt.Sprint(gate))
		g.place(other, 1, 1, 0)
		g.settle()
		key := g.key()
		granted := g.granted(s, placed(claimOf(key, "a")))
		if err := s.catalog.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		until := s.catalog.copy.Load().until()
		sealed := g.place(other, 1, 2, store.MoveSealed)
		openGate := g.shut(gate, g.bucket())
		g.shift(until - (300 * time.Millisecond).Microseconds() - g.now())
		done := g.completing(s, key, granted.Fence)
		for g.now() < until && g.held(gate, g.bucket()) == 0 {
		}
		overlapped := g.held(gate, g.bucket()) > 0
		g.past(sealed.InForce.UnixMicro(), 0)
		before := g.oneRow(key)
		openGate()
		err := <-done
		if after := g.oneRow(key); after != before {
			t.Fatalf("the row was %+v when the seal was in force, and is %+v (%v)", before, after, err)
		}
		if overlapped {
			return
		}
	}
	t.Fatal("the statement never began just before its copy was too old")
}

// A COMMIT takes longer than any statement may. Until it has ended nobody is told which
// records a sealed namespace has.
func TestProtocolListingOfSealedAwaitsCommits(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, pgtest.New(t, pgtest.Fast).NewDatabase(t))
	r.opts.Timing = Timing{MaxStatement: 200 * time.Millisecond, MaxOffset: 100 * time.Millisecond}
	r.migrate()
	s := r.replica()
	r.placed(s)
	h := r.hold(s, 1, "held")
	list := func() (store.RecordPage, error) {
		return s.ListRecords(t.Context(), store.ListRequest{Namespace: moving})
	}
	tx := r.writer()
	digest := h.key.Digest()
	_, err := tx.Exec(t.Context(), "UPDATE "+bucketAt(store.TierHour, began).table("local")+" SET attempt_number = 7 WHERE digest = $1", digest[:])
	r.must(err)
	_, err = list()
	r.must(err)
	r.set(r.place(s, 1, 2, store.MoveSealed).InForce.UnixMicro())
	_, err = list()
	wantError(t, "while the transaction runs", err, store.ErrUnavailable)
	r.must(tx.Commit(t.Context()))
	page, err := list()
	r.must(err)
	if len(page.Records) != 1 || page.Records[0].AttemptNumber != 7 {
		t.Fatalf("listed: %+v", page.Records)
	}
}

// importOf is a record as another store has it: completed, with a fence.
func (g *stage) importOf(key store.Key, fence int64, body string) store.Inspection {
	g.Helper()
	return importedAt(key, g.now(), fence, body)
}

func importedAt(key store.Key, now, fence int64, body string) store.Inspection {
	at := timeOf(now)
	outcome := &store.Outcome{Body: []byte(body)}
	return store.Inspection{Record: &store.Record{
		Key: key, State: store.StateCompleted, Fence: fence, AttemptID: "a", AttemptNumber: 1, Fingerprint: store.Fingerprint{Version: 1, Digest: "fp"},
		GrantedAt: at, LeaseEnd: at.Add(30 * time.Second), AttemptLimit: at.Add(15 * time.Minute), EndedAt: at, ExpiresAt: at.Add(time.Hour),
		LapsePolicy: store.Takeover, Retention: time.Hour, Outcome: outcome, OutcomeDigest: outcome.Digest(),
	}}
}

func (g *stage) importing(s *Store, revision int64, records ...store.Inspection) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.ImportRecords(context.WithoutCancel(g.Context()), "hour", revision, records) }()
	return done
}

func (g *stage) imported(s *Store, revision int64, records ...store.Inspection) {
	g.Helper()
	if err := <-g.importing(s, revision, records...); err != nil {
		g.Fatal(err)
	}
}

// fenceOf is the fence of the only row of a key.
func (g *stage) fenceOf(key store.Key) int64 {
	g.Helper()
	rows := g.rows(key)
	if len(rows) != 1 {
		g.Fatalf("key %s has the rows %+v (all: %+v); want one", key.ID, rows, g.places(key))
	}
	return rows[0].fence
}

// Two imports of one key on the two sides of a bucket's end: the late one is held between what
// it sees and what it writes, and then meets the marker.
func TestProtocolImportMeetsMarker(t *testing.T) {
	t.Parallel()
	const gate = 3
	g := newStage(t, unhurried)
	other, s := g.open(), g.open("idemd.gate", fmt.Sprint(gate))
	g.place(other, 1, 2, store.MoveSealed)
	g.settle()
	key, warm := g.key(), g.key()
	g.imported(s, 2, g.importOf(warm, 5, "warm"))
	old := g.bucket()
	openGate := g.shut(gate, old)
	g.nearlyAt(old.end(), 500*time.Millisecond)
	late := g.importing(s, 2, g.importOf(key, 5, "late"))
	g.eventually("the import waits", func() bool { return g.held(gate, old) > 0 })
	g.past(old.end(), 0)
	g.imported(other, 2, g.importOf(key, 7, "next"))
	openGate()
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	if fence := g.fenceOf(key); fence != 7 {
		t.Fatalf("fence %d; want 7", fence)
	}
}

// The row that an imported record replaces does not go unless the record comes.
func TestProtocolImportIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	g.open()
	s, proxy := g.proxied()
	g.place(s, 1, 2, store.MoveSealed)
	key := g.key()
	g.imported(s, 2, g.importOf(key, 5, "old"))
	g.step(15 * time.Minute)
	arrived, resume := stall(t, proxy, putText)
	done := g.importing(s, 2, g.importOf(key, 7, "new"))
	arrived()
	g.shift((11 * time.Second).Microseconds()) // longer than a statement may run
	resume()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if fence := g.fenceOf(key); fence != 7 {
		t.Fatalf("fence %d; want 7", fence)
	}
}

// A clock that is ahead has put a row into the next bucket already. What is imported by one
// that is not there yet waits, and takes its place then.
func TestProtocolImportMeetsRowInNextBucket(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	s := g.open()
	g.place(s, 1, 2, store.MoveSealed)
	key, b := g.key(), g.bucket()
	g.imported(s, 2, g.importOf(key, 5, "ahead"))
	execute(t, g.conn, fmt.Sprintf("WITH gone AS (DELETE FROM %s RETURNING *) INSERT INTO %s SELECT * FROM gone", b.table("local"), b.next().table("local")))
	if err := <-g.importing(s, 2, g.importOf(key, 7, "new")); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("import: %v", err)
	}
	if fence := g.fenceOf(key); fence != 5 {
		t.Fatalf("fence %d; want 5", fence)
	}
	g.step(15 * time.Minute)
	g.imported(s, 2, g.importOf(key, 7, "new"))
	if fence := g.fenceOf(key); fence != 7 {
		t.Fatalf("fence %d; want 7", fence)
	}
}

// A placement that is changed while records are imported waits for them: what is imported by an
// earlier one never comes later.
func TestProtocolPlacementWaitsForImport(t *testing.T) {
	t.Parallel()
	g := newStage(t, unhurried)
	other := g.open()
	s, proxy := g.proxied()
	g.place(other, 1, 2, store.MoveSealed)
	g.settle()
	key := g.key()
	arrived, resume := stall(t, proxy, putText)
	done := g.importing(s, 2, g.importOf(key, 5, "late"))
	arrived()
	abandoned := make(chan error, 1)
	go func() {
		_, err := other.PlaceNamespace(g.Context(), "hour", placementOf(1, 3, 0))
		abandoned <- err
	}()
	g.eventually("the placement waits for the import", func() bool {
		select {
		case err := <-abandoned:
			t.Fatalf("the namespace is placed while records come in: %v", err)
		default:
		}
		return g.waiting() > 0
	})
	resume()
	if err := errors.Join(<-done, <-abandoned); err != nil {
		t.Fatal(err)
	}
	g.fenceOf(key)
	if err := <-g.importing(s, 2, g.importOf(g.key(), 5, "too late")); !errors.Is(err, store.ErrWrongRegion) {
		t.Fatalf("an import after that: %v", err)
	}
}

// waiting is how many sessions on this database wait for a transaction to end.
func (g *stage) waiting() (n int) {
	g.Helper()
	err := g.conn.QueryRow(g.Context(), `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'transactionid'`).Scan(&n)
	if err != nil {
		g.Fatal(err)
	}
	return n
}

// Several import the same keys, with fences in any order, while a bucket ends. Of each key the
// highest fence stays, in one row.
func TestRaceOfImportsAtBucketEnd(t *testing.T) {
	t.Parallel()
	g := newStage(t, Timing{MaxStatement: time.Second, MaxOffset: 500 * time.Millisecond})
	stores := []*Store{g.open("idemd.dawdle", "0.02"), g.open("idemd.dawdle", "0.02"), g.open()}
	g.place(stores[0], 1, 2, store.MoveSealed)
	g.settle()
	keys := make([]store.Key, 20)
	for i := range keys {
		keys[i] = g.key()
	}
	highest := make([]int64, len(keys))
	var mu sync.Mutex
	b := g.bucket()
	g.nearlyAt(b.end(), 700*time.Millisecond)
	end := b.end() + time.Second.Microseconds()
	var importers sync.WaitGroup
	for _, s := range stores {
		importers.Go(func() {
			for g.estimate() < end {
				records := make([]store.Inspection, len(keys))
				fence := 1 + rand.Int64N(1000)
				for i, key := range keys {
					records[i] = importedAt(key, g.estimate(), fence+int64(i), "x")
				}
				err := s.ImportRecords(g.Context(), "hour", 2, records)
				if errors.Is(err, store.ErrUnavailable) {
					continue // it may have been done: what is highest is not known
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i := range keys {
					highest[i] = max(highest[i], fence+int64(i))
				}
				mu.Unlock()
			}
		})
	}
	importers.Wait()
	for i, key := range keys {
		if fence := g.fenceOf(key); fence < highest[i] || highest[i] == 0 {
			t.Errorf("key %s has fence %d; %d was imported", key.ID, fence, highest[i])
		}
	}
}
