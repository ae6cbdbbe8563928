package pebblestore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// place sets the placement of the world's namespace: the next revision, of an epoch, in a phase
// of a move.
func (w *world) place(epoch int64, phase store.MovePhase) int64 {
	w.t.Helper()
	ns, err := w.s.GetNamespace(w.t.Context(), "hour")
	if err != nil {
		w.t.Fatal(err)
	}
	p := store.Placement{Epoch: epoch, Revision: ns.Placement.Revision + 1, Rule: "fixed eu"}
	if phase != 0 {
		p.Move = store.Move{To: "us", Phase: phase}
	}
	if _, err := w.s.PlaceNamespace(w.t.Context(), "hour", p); err != nil {
		w.t.Fatal(err)
	}
	return p.Revision
}

// settle claims and completes a key, and returns what is kept of it.
func (w *world) settle(id, body string) store.Inspection {
	w.t.Helper()
	if err := w.complete(id, "a", w.claim(id, "a", false).Granted.Fence, body); err != nil {
		w.t.Fatal(err)
	}
	in, err := w.s.InspectRecord(w.t.Context(), hourKey(id))
	if err != nil {
		w.t.Fatal(err)
	}
	return in
}

func (w *world) claimBy(epoch int64, id string) (store.ClaimAnswer, error) {
	return w.s.Claim(w.t.Context(), store.ClaimRequest{Key: hourKey(id), AttemptID: "b", Epoch: epoch})
}

// stands reads a record, as a namespace that is sealed says nothing of it but to operators.
func (w *world) stands(id string) (*store.Record, error) {
	in, err := w.s.InspectRecord(w.t.Context(), hourKey(id))
	if err != nil {
		return nil, err
	}
	return in.Record, nil
}

func (w *world) importAll(revision int64, records ...store.Inspection) {
	w.t.Helper()
	if err := w.s.ImportRecords(w.t.Context(), "hour", revision, records); err != nil {
		w.t.Fatal(err)
	}
}

// forgetAll forgets until there is no more, and returns how many calls that took.
func (w *world) forgetAll(revision int64) (calls int) {
	w.t.Helper()
	for {
		calls++
		more, err := w.s.ForgetRecords(w.t.Context(), "hour", revision, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		if !more {
			return calls
		}
	}
}

// past says whether a Claim of the key is answered without the loop.
func (w *world) past(epoch int64, id string) bool {
	w.t.Helper()
	req := store.ClaimRequest{Key: hourKey(id), AttemptID: "b", Epoch: epoch}
	done, _ := w.s.repeat(&req.Key, req.Key.Digest(), func(old *store.Record, ns *store.Namespace, now time.Time) (store.Change, error) {
		_, change, err := store.DecideClaim(old, ns, req, now, now)
		return change, err
	})
	return done
}

// made returns a record that was granted at an instant and completed at once.
func made(id string, granted time.Time, body string) store.Inspection {
	outcome := &store.Outcome{Body: []byte(body)}
	return store.Inspection{Record: &store.Record{
		Key: hourKey(id), State: store.StateCompleted, Fence: granted.UnixMicro(), AttemptID: "a", AttemptNumber: 1,
		GrantedAt: granted, LeaseEnd: granted.Add(time.Second), AttemptLimit: granted.Add(time.Minute), EndedAt: granted,
		ExpiresAt: granted.Add(time.Hour), LapsePolicy: store.Takeover, Retention: time.Hour,
		Outcome: outcome, OutcomeDigest: outcome.Digest(),
	}}
}

func ofHour(key *store.Key) bool { return key.Namespace == "hour" }

// held returns a record that lapsed under HOLD.
func held(id string, granted time.Time) store.Inspection {
	in := made(id, granted, "")
	r := in.Record
	r.State, r.LapsePolicy, r.EndedAt, r.ExpiresAt = store.StateInProgress, store.Hold, time.Time{}, time.Time{}
	r.Outcome, r.OutcomeDigest = nil, store.OutcomeDigest{}
	return in
}

// Once a flip is acknowledged, what is answered without the loop too is answered by it.
func TestRepeatKeepsToTheEpoch(t *testing.T) {
	w := newWorld(t)
	w.settle("k", "done")
	epoch := int64(0)
	for next := int64(1); next < 4; next++ {
		w.place(next, store.MoveFlipped)
		if _, err := w.claimBy(epoch, "k"); !errors.Is(err, store.ErrWrongRegion) {
			t.Fatalf("a repeat by epoch %d, after %d is in force: %v", epoch, next, err)
		}
		answer, err := w.claimBy(next, "k")
		if err != nil || answer.Completed == nil || !w.past(next, "k") {
			t.Fatalf("a repeat by the epoch in force: %+v, %v; without the loop: %t", answer, err, w.past(next, "k"))
		}
		epoch = next
	}
}

// Nothing that was forgotten is answered from memory, and nothing that took its place is not.
func TestForgottenAndImportedRowsInMemory(t *testing.T) {
	w := newWorld(t)
	in := w.settle("k", "done")
	revision := w.place(1, store.MoveSealed)
	if !w.past(1, "k") {
		t.Fatal("a settled key is not answered without the loop")
	}
	w.forgetAll(revision)
	if _, err := w.stands("k"); !errors.Is(err, store.ErrKeyNotFound) || w.past(1, "k") {
		t.Errorf("a forgotten key: %v; without the loop: %t", err, w.past(1, "k"))
	}
	w.importAll(revision, in)
	if answer, err := w.claimBy(1, "k"); err != nil || answer.Completed == nil || !w.past(1, "k") {
		t.Errorf("an imported one: %+v, %v; without the loop: %t", answer, err, w.past(1, "k"))
	}
	for what, in := range map[string]store.Inspection{
		"other":  made("k", storetest.Start.Add(time.Minute), "other"),
		"newest": made("k", storetest.Start.Add(time.Minute), "newest"), // of the same grant
	} {
		w.importAll(revision, in)
		answer, err := w.claimBy(1, "k")
		if err != nil || answer.Completed == nil || string(answer.Completed.Outcome.Body) != what {
			t.Errorf("what has taken the place of another: %+v, %v", answer, err)
		}
	}
	w.importAll(revision, in) // its fence is lower
	if answer, err := w.claimBy(1, "k"); err != nil || string(answer.Completed.Outcome.Body) == "done" {
		t.Errorf("one with a lower fence took the place of one with a higher: %+v, %v", answer, err)
	}
	if rows := w.stored(prefixRow); rows != 1 {
		t.Errorf("%d rows are stored, want 1", rows)
	}
	w.importAll(revision, held("k", storetest.Start.Add(2*time.Minute)))
	if rec, err := w.stands("k"); w.past(1, "k") || err != nil || rec.State != store.StateInProgress {
		t.Errorf("one that is not completed: %+v, %v; without the loop: %t", rec, err, w.past(1, "k"))
	}
}

// What a turn has removed is gone for whatever comes after it in the turn, though it can still
// be read from Pebble: for a look-up, an import and maintenance.
func TestRemovedRowIsGoneWithinItsTurn(t *testing.T) {
	for _, cached := range []bool{true, false} {
		w := newWorld(t)
		w.settle("k", "done")
		if !cached {
			w.reopen()
		}
		revision := w.place(1, store.MoveSealed)
		digest, key := hourKey("k").Digest(), hourKey("k")
		in := held("k", storetest.Start.Add(-time.Hour)) // its fence is lower than the removed one's
		err := w.s.do(t.Context(), classSettle, "", 0, func(t2 *turn) error {
			r, err := t2.current(store.TierHour, digest)
			if err != nil || r == nil {
				return fmt.Errorf("before: %+v, %w", r, err)
			}
			t2.remove(digest, r)
			if found, err := t2.find(store.TierHour, &key, digest); found != nil || err != nil {
				t.Errorf("cached %t: found %+v, %v", cached, found, err)
			}
			if moved, err := t2.moveForward(r.bucket, digest); moved || err != nil {
				t.Errorf("cached %t: maintenance moved it: %v", cached, err)
			}
			return t2.importRecord(store.TierHour, &in)
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			rec, err := w.stands("k")
			if err != nil || rec.State != store.StateInProgress || w.past(1, "k") || w.stored(prefixRow) != 1 {
				t.Errorf("cached %t: %+v, %v, %d rows; want what was imported", cached, rec, err, w.stored(prefixRow))
			}
			w.reopen()
		}
		w.forgetAll(revision)
		if n := w.stored(prefixRow); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	}
}

// Imported rows are in buckets in which they are found, and which are not dropped before they
// expire, whenever they were granted.
func TestImportedRowsOutliveTheirBuckets(t *testing.T) {
	w := newWorld(t)
	w.clock.Advance(24 * time.Hour)
	now := w.clock.Wall()
	revision := w.place(1, store.MoveSealed)
	width := store.TierHour.BucketWidth()
	granted := map[string]time.Time{
		"now": now, "recently": now.Add(-width), "as long ago as can be": now.Add(-dueIn + width), "by a clock ahead": now.Add(width),
	}
	var records []store.Inspection
	for id, at := range granted {
		in := made(id, at, id)
		in.Record.EndedAt, in.Record.ExpiresAt = at, now.Add(59*time.Minute)
		records = append(records, in)
	}
	for i := range 3 {
		records = append(records, held(fmt.Sprint("held", i), now.Add(-time.Duration(i)*240*time.Hour)))
	}
	w.importAll(revision, records...)
	for id, at := range granted {
		want := bucketOf(store.TierHour, at)
		if id == "by a clock ahead" {
			want = bucketOf(store.TierHour, now)
		}
		if _, closer, err := w.s.db.Get(appendRowKey(nil, want, hourKey(id).Digest())); err != nil {
			t.Errorf("%s: not in the bucket of %v: %v", id, want.describe().Start, err)
		} else if err := closer.Close(); err != nil {
			t.Error(err)
		}
	}
	if report := w.maintain(); len(report.Dropped) != 0 || report.Moved != 0 {
		t.Errorf("%+v, want nothing due after an import", report)
	}
	check := func(when string) {
		t.Helper()
		for _, in := range records {
			if _, err := w.stands(in.Record.Key.ID); err != nil {
				t.Errorf("%s: %s: %v", when, in.Record.Key.ID, err)
			}
		}
	}
	check("at once")
	w.reopen()
	check("opened again")
	w.clock.Advance(59*time.Minute - time.Microsecond)
	w.maintain()
	check("before they expire")
	w.clock.Advance(dueIn)
	if report := w.maintain(); report.Moved != 3 {
		t.Errorf("%+v, want the held ones moved", report)
	}
	for _, in := range records {
		want := error(nil)
		if in.Record.State == store.StateCompleted {
			want = store.ErrKeyNotFound
		}
		if _, err := w.stands(in.Record.Key.ID); !errors.Is(err, want) {
			t.Errorf("afterwards: %s: %v, want %v", in.Record.Key.ID, err, want)
		}
	}
	if n := w.stored(prefixRow); n != 3 {
		t.Errorf("%d rows are left, want 3", n)
	}
}

// Events are carried with their record, in the place of those of the one it replaces.
func TestImportReplacesEvents(t *testing.T) {
	w := newWorld(t)
	w.claim("k", "a", true)
	for i := range 3 {
		if err := w.complete("k", "other", 1, fmt.Sprint(i)); !errors.Is(err, store.ErrStaleFence) {
			t.Fatal(err)
		}
	}
	revision := w.place(1, store.MoveSealed)
	in := held("k", w.clock.Wall().Add(time.Microsecond))
	late := &store.Outcome{Body: []byte("late")}
	in.Events = []store.Event{
		{At: storetest.Start, Kind: store.EventTakeover, Fence: 1, AttemptNumber: 1, NewFence: 2},
		{At: storetest.Start, Kind: store.EventLateOutcome, Fence: 1, Outcome: late, OutcomeDigest: late.Digest(), OutcomeSize: late.Size()},
	}
	for range 2 { // the second time changes nothing
		w.importAll(revision, in)
		events := w.events("k")
		if len(events) != 2 || events[0] != in.Events[0] || string(events[1].Outcome.Body) != "late" || w.stored(prefixEvent) != 2 {
			t.Fatalf("events %+v, %d are stored; want those that were imported", events, w.stored(prefixEvent))
		}
		w.reopen()
	}
	w.forgetAll(revision)
	if rows, events := w.stored(prefixRow), w.stored(prefixEvent); rows != 0 || events != 0 {
		t.Errorf("%d rows and %d events are left", rows, events)
	}
}

// An import holds nobody up for long: it is stored in small batches.
func TestImportInSmallBatches(t *testing.T) {
	w := newWorld(t)
	observed := &batches{Observer: w.s.opts.Observer}
	mustClose(t, w.s)
	w.opts.Observer = observed
	w.s = mustOpen(t, w.opts)
	revision := w.place(1, store.MoveSealed)
	var records []store.Inspection
	for i := range 40 {
		records = append(records, made(fmt.Sprint(i), storetest.Start, strings.Repeat("x", 100<<10)))
	}
	observed.take()
	for range 2 {
		w.importAll(revision, records...)
		if largest := observed.take(); largest > moveBytes+110<<10 {
			t.Errorf("a commit has %d bytes, want at most %d", largest, moveBytes+110<<10)
		}
		if n := w.stored(prefixRow); n != len(records) {
			t.Errorf("%d rows are stored, want %d", n, len(records))
		}
	}
}

// Forgetting looks at a bounded number of rows in each call, and goes on where it was, so that
// it comes to its end however many rows others have.
func TestForgettingIsBoundedAndComesToItsEnd(t *testing.T) {
	w := newWorld(t)
	if _, err := w.s.CreateNamespace(t.Context(), store.Namespace{Name: "other", Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	const rows = 12 * store.MaxPageSize // more than scanRows
	fill := func(namespace string, epoch int64) {
		p := store.Placement{Epoch: epoch, Revision: 10, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveSealed}}
		if _, err := w.s.PlaceNamespace(t.Context(), namespace, p); err != nil {
			t.Fatal(err)
		}
		for page := range rows / store.MaxPageSize {
			var records []store.Inspection
			for i := range store.MaxPageSize {
				in := held(fmt.Sprint(page, ".", i), storetest.Start)
				in.Record.Key.Namespace = namespace
				records = append(records, in)
			}
			if err := w.s.ImportRecords(t.Context(), namespace, 10, records); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill("other", 1)
	fill("hour", 1)
	left := w.stored(prefixRow)
	more, err := w.s.ForgetRecords(t.Context(), "hour", 10, nil)
	if err != nil || !more || left-w.stored(prefixRow) > scanRows || left == w.stored(prefixRow) {
		t.Errorf("one call forgets %d rows, more: %t, %v; want some, at most %d", left-w.stored(prefixRow), more, err, scanRows)
	}
	if calls, want := w.forgetAll(10), 2*rows/scanRows+1; calls > want {
		t.Errorf("forgetting takes %d calls more, want at most %d", calls, want)
	}
	if n := w.stored(prefixRow); n != rows {
		t.Errorf("%d rows are left, want the other namespace's %d", n, rows)
	}
	if calls := w.forgetAll(10); calls > 2*rows/scanRows+1 {
		t.Errorf("forgetting nothing takes %d calls", calls)
	}
}

// What is imported while somebody forgets is looked for again.
func TestForgettingStartsOverAfterAnImport(t *testing.T) {
	w := newWorld(t)
	revision := w.place(1, store.MoveSealed)
	f, _, _, err := w.s.resumeForgetting(t.Context(), "hour", revision)
	if err != nil {
		t.Fatal(err)
	}
	w.importAll(revision, held("k", storetest.Start))
	if more, err := w.s.leaveForgetting(t.Context(), "hour", f, nil); !more || err != nil {
		t.Errorf("more: %t, %v; an import came between", more, err)
	}
	if w.forgetAll(revision); w.stored(prefixRow) != 0 {
		t.Error("a row is left")
	}
	// Nor is another move's place gone on from.
	f, _, _, err = w.s.resumeForgetting(t.Context(), "hour", revision)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := w.s.leaveForgetting(t.Context(), "hour", f, []byte{prefixRow, 255}); !more || err != nil {
		t.Fatalf("more: %t, %v", more, err)
	}
	w.place(1, 0)
	next := w.place(1, store.MoveSealed)
	if _, _, from, err := w.s.resumeForgetting(t.Context(), "hour", next); err != nil || from[1] == 255 {
		t.Errorf("another move goes on from %x, %v", from, err)
	}
}

// A row that maintenance moves forward while it is on its way to be forgotten is forgotten.
func TestForgettingFindsWhatMaintenanceMoves(t *testing.T) {
	w := newWorld(t)
	w.claim("k", "a", true)
	revision := w.place(1, store.MoveSealed)
	from, _ := tierSpan(store.TierHour)
	rows, err := w.s.scanNamespace(t.Context(), store.TierHour, from, ofHour)
	digests := rows.digests
	if err != nil || len(digests) != 1 {
		t.Fatalf("%d rows, %v", len(digests), err)
	}
	w.clock.Advance(dueIn)
	w.maintain()
	w.reopen() // nothing is cached
	if n, err := w.s.forgetSome(t.Context(), "hour", revision, digests); n != 1 || err != nil || w.stored(prefixRow) != 0 {
		t.Errorf("%d seen to, %v, %d rows are left", n, err, w.stored(prefixRow))
	}
}

// A damaged row does not tell whose it is. It stays and is never taken for absent, by an import
// neither.
func TestForgettingLeavesDamagedRows(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"bad", "good"} {
		w.claim(id, "a", true)
	}
	mustClose(t, w.s)
	rowKey := appendRowKey(nil, bucketOf(store.TierHour, storetest.Start), hourKey("bad").Digest())
	editDB(t, w.opts.FS, func(b *pebble.Batch) { _ = b.Set(rowKey, []byte("rubbish"), nil) })
	observer := &damageCounter{}
	w.opts.Observer = observer
	w.s = mustOpen(t, w.opts)
	revision := w.place(1, store.MoveSealed)
	w.forgetAll(revision)
	if n := w.stored(prefixRow); n != 1 || observer.count() == 0 {
		t.Errorf("%d rows are left, %d damages were told; want the damaged row, told", n, observer.count())
	}
	if _, err := w.stands("bad"); !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("looking the damaged one up: %v", err)
	}
	err := w.s.ImportRecords(t.Context(), "hour", revision, []store.Inspection{held("bad", storetest.Start)})
	if !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("importing over the damaged one: %v", err)
	}
}

func TestPeekKey(t *testing.T) {
	for _, r := range []*row{inProgressRow(), completedRow(), {rec: made("k", storetest.Start, "x").Record}} {
		r.rec.AttemptNumber = 1 << 40
		if got, err := peekKey(appendRow(nil, r)); err != nil || got != r.rec.Key {
			t.Errorf("%+v, %v; want %+v", got, err, r.rec.Key)
		}
	}
	if _, err := peekKey([]byte("short")); !errors.Is(err, errDamagedValue) {
		t.Errorf("of a value that is cut short: %v", err)
	}
}

// Whatever was acknowledged of an import or of forgetting is there after a crash, and both go on
// from it to the same end.
func TestImportAndForgetAcrossCrashes(t *testing.T) {
	w := newWorld(t)
	disk := w.opts.FS.(*vfs.MemFS)
	revision := w.place(1, store.MoveSealed)
	w.claimed(3)
	var pages [][]store.Inspection
	for p := range 4 {
		var page []store.Inspection
		for i := range 100 {
			page = append(page, made(fmt.Sprint(p, ".", i), storetest.Start, "x"), held(fmt.Sprint("held", p, ".", i), storetest.Start))
		}
		pages = append(pages, page)
	}
	crash := func() {
		t.Helper()
		disk = disk.CrashClone(vfs.CrashCloneCfg{})
		w.opts.FS = disk
		w.s = mustOpen(t, w.opts)
	}
	for p, page := range pages {
		w.importAll(revision, page...)
		crash()
		w.importAll(revision, page[:50]...) // a page is sent again by who does not know that it was stored
		for _, in := range slices.Concat(pages[:p+1]...) {
			if _, err := w.stands(in.Record.Key.ID); err != nil {
				t.Fatalf("after page %d: %s: %v", p, in.Record.Key.ID, err)
			}
		}
		if n := w.stored(prefixRow); n != 200*(p+1)+3 {
			t.Fatalf("after page %d: %d rows, want %d", p, n, 200*(p+1)+3)
		}
	}
	// Half of it is forgotten, then all.
	from, _ := tierSpan(store.TierHour)
	rows, err := w.s.scanNamespace(t.Context(), store.TierHour, from, ofHour)
	digests := rows.digests
	if err != nil {
		t.Fatal(err)
	}
	for seen := 0; seen < 400; {
		n, err := w.s.forgetSome(t.Context(), "hour", revision, digests[seen:])
		if err != nil {
			t.Fatal(err)
		}
		seen += n
		crash()
		if left := w.stored(prefixRow); left != 803-seen {
			t.Fatalf("%d rows are left after %d are forgotten, want %d", left, seen, 803-seen)
		}
	}
	w.forgetAll(revision)
	crash()
	if n := w.stored(prefixRow); n != 3 {
		t.Errorf("%d rows are left, want those of another namespace", n)
	}
}

// claimed claims n keys of another namespace of the tier.
func (w *world) claimed(n int) {
	w.t.Helper()
	if _, err := w.s.CreateNamespace(w.t.Context(), store.Namespace{Name: "other", Retention: time.Hour}); err != nil {
		w.t.Fatal(err)
	}
	for i := range n {
		_, err := w.s.Claim(w.t.Context(), store.ClaimRequest{Key: store.Key{Namespace: "other", ID: fmt.Sprint(i)}, AttemptID: "a"})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}
