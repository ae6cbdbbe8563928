package pebblestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// world is a store on a scripted clock with a namespace of an hour's retention.
type world struct {
	t     *testing.T
	clock *storetest.Clock
	opts  Options
	s     *Store
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, clock: storetest.NewClock()}
	w.opts = Options{FS: vfs.NewCrashableMem(), Source: w.clock, MaintainEvery: -1}
	w.s = mustOpen(t, w.opts)
	_, err := w.s.CreateNamespace(t.Context(), store.Namespace{Name: "hour", Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) reopen() {
	w.t.Helper()
	mustClose(w.t, w.s)
	w.s = mustOpen(w.t, w.opts)
}

func hourKey(id string) store.Key { return store.Key{Namespace: "hour", ID: id} }

func (w *world) claim(id, attempt string, hold bool) store.ClaimAnswer {
	w.t.Helper()
	answer, err := w.s.Claim(w.t.Context(), store.ClaimRequest{Key: hourKey(id), AttemptID: attempt, Hold: hold})
	if err != nil {
		w.t.Fatalf("claim of %q by %q: %v", id, attempt, err)
	}
	return answer
}

func (w *world) complete(id, attempt string, fence int64, body string) error {
	_, err := w.s.Complete(w.t.Context(), store.CompleteRequest{
		Key: hourKey(id), AttemptID: attempt, Fence: fence, Outcome: &store.Outcome{Body: []byte(body)},
	})
	return err
}

func (w *world) events(id string) []store.Event {
	w.t.Helper()
	inspected, err := w.s.InspectRecord(w.t.Context(), hourKey(id))
	if err != nil {
		w.t.Fatalf("inspect %q: %v", id, err)
	}
	return inspected.Events
}

func (w *world) maintain() store.Maintenance {
	w.t.Helper()
	report, err := w.s.Maintain(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

// stored counts the keys of a kind in Pebble.
func (w *world) stored(prefix byte) (n int) {
	w.t.Helper()
	it, err := w.s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Error(); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// dueIn is how long after its start a bucket of the hour's tier is due to be dropped.
var dueIn = store.TierHour.BucketWidth() + store.TierHour.MaxAttempt() + store.TierHour.MaxRetention()

func TestMaintainDropsWhatIsExpiredAndMovesTheRest(t *testing.T) {
	w := newWorld(t)
	for i := range 3000 { // more than one chunk of a scan
		w.claim(fmt.Sprint("gone-", i), "a", false)
	}
	for i := range 100 {
		w.claim(fmt.Sprint("held-", i), "a", true)
	}
	fence := w.claim("done", "a", false).Granted.Fence
	if err := w.complete("done", "a", fence, "x"); err != nil {
		t.Fatal(err)
	}

	w.clock.Advance(dueIn - time.Microsecond)
	if report := w.maintain(); len(report.Dropped) != 0 || report.Moved != 0 {
		t.Fatalf("before it is due: %+v", report)
	}
	w.clock.Advance(time.Microsecond)
	report := w.maintain()
	if len(report.Dropped) != 1 || !report.Dropped[0].Start.Equal(storetest.Start) || report.Moved != 100 {
		t.Fatalf("%+v, want the first bucket dropped and 100 records moved", report)
	}
	if n := w.stored(prefixRow); n != 100 {
		t.Errorf("%d rows are left, want 100", n)
	}
	buckets, err := w.s.Buckets(t.Context())
	if err != nil || len(buckets) != 1 || !buckets[0].Start.Equal(storetest.Start.Add(dueIn)) {
		t.Errorf("buckets %+v, %v; want the current one", buckets, err)
	}
	for _, reopened := range []bool{false, true} {
		if reopened {
			w.reopen()
		}
		for i := range 100 {
			if w.claim(fmt.Sprint("held-", i), "b", false).Unresolved == nil {
				t.Fatalf("held record %d is gone (reopened: %v)", i, reopened)
			}
		}
	}
	if g := w.claim("done", "b", false).Granted; g == nil || g.AttemptNumber != 1 || g.Fence <= fence {
		t.Errorf("a dropped key is granted as %+v, want afresh with a higher fence than %d", g, fence)
	}
}

func TestMovedRecordCanMoveAgainAndBeSettled(t *testing.T) {
	w := newWorld(t)
	fence := w.claim("k", "a", true).Granted.Fence
	for range 3 {
		w.clock.Advance(dueIn)
		if report := w.maintain(); report.Moved != 1 || len(report.Dropped) != 1 {
			t.Fatalf("%+v, want one record moved", report)
		}
	}
	rec, err := w.s.Resolve(t.Context(), store.ResolveRequest{Key: hourKey("k"), AnyFence: true, Outcome: &store.Outcome{}, Actor: "me", Reason: "seen"})
	if err != nil || rec.Fence <= fence {
		t.Fatalf("Resolve: %+v, %v", rec, err)
	}
	w.clock.Advance(dueIn)
	if report := w.maintain(); report.Moved != 0 || len(report.Dropped) != 1 {
		t.Errorf("%+v, want the settled record dropped", report)
	}
	if rows, events := w.stored(prefixRow), w.stored(prefixEvent); rows != 0 || events != 0 {
		t.Errorf("%d rows and %d events are left", rows, events)
	}
}

func TestGrantMovesRowAndEventsForward(t *testing.T) {
	w := newWorld(t)
	fence := w.claim("k", "a", false).Granted.Fence
	for i := range 3 {
		w.clock.Advance(store.TierHour.BucketWidth())
		next := w.claim("k", fmt.Sprint("b", i), false).Granted
		if next == nil || next.Fence <= fence || next.AttemptNumber != i+2 {
			t.Fatalf("takeover %d: %+v", i, next)
		}
		fence = next.Fence
		if i == 1 {
			w.reopen()
		}
		if rows, events := w.stored(prefixRow), w.stored(prefixEvent); rows != 1 || events != i+1 {
			t.Errorf("%d rows and %d events are stored, want 1 and %d", rows, events, i+1)
		}
	}
	if err := w.complete("k", "a", 1, "late"); !errors.Is(err, store.ErrStaleFence) {
		t.Fatal(err)
	}
	if events := w.events("k"); len(events) != 4 || events[3].Kind != store.EventLateOutcome || string(events[3].Outcome.Body) != "late" {
		t.Errorf("events %+v, want three takeovers and the late outcome", events)
	}
	w.clock.Advance(dueIn)
	w.claim("k", "again", false)
	if events := w.events("k"); len(events) != 0 {
		t.Errorf("a new life begins with events %+v", events)
	}
	if rows, events := w.stored(prefixRow), w.stored(prefixEvent); rows != 1 || events != 0 {
		t.Errorf("%d rows and %d events are stored, want 1 and 0", rows, events)
	}
}

func TestNewestEventsAreKeptAndRepeatsAreNot(t *testing.T) {
	w := newWorld(t)
	w.claim("k", "a", false)
	for i := range store.MaxEvents + 5 {
		for range 2 {
			w.clock.Advance(time.Microsecond)
			if err := w.complete("k", "other", 1, fmt.Sprint(i)); !errors.Is(err, store.ErrStaleFence) {
				t.Fatal(err)
			}
		}
		if i == store.MaxEvents {
			w.reopen()
		}
	}
	events := w.events("k")
	if len(events) != store.MaxEvents || w.stored(prefixEvent) != store.MaxEvents {
		t.Fatalf("%d events, %d stored, want %d", len(events), w.stored(prefixEvent), store.MaxEvents)
	}
	for i, e := range events {
		if want := fmt.Sprint(i + 5); string(e.Outcome.Body) != want {
			t.Errorf("event %d is of outcome %q, want %q", i, e.Outcome.Body, want)
		}
	}
}

func TestBucketWithADamagedRowIsKept(t *testing.T) {
	w := newWorld(t)
	w.claim("k", "a", true)
	w.claim("bad", "a", true)
	mustClose(t, w.s)
	rowKey := appendRowKey(nil, bucketOf(store.TierHour, storetest.Start), hourKey("bad").Digest())
	editDB(t, w.opts.FS, func(b *pebble.Batch) { _ = b.Set(rowKey, []byte("rubbish"), nil) })
	w.s = mustOpen(t, w.opts)
	w.clock.Advance(dueIn)
	if _, err := w.s.Maintain(t.Context()); !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("Maintain: %v, want ErrRecordCorrupt", err)
	}
	if w.claim("k", "b", false).Unresolved == nil {
		t.Error("a healthy record of the bucket is gone")
	}
	_, err := w.s.Claim(t.Context(), store.ClaimRequest{Key: hourKey("bad"), AttemptID: "b"})
	if !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("claim of the damaged key: %v, want ErrRecordCorrupt", err)
	}

	// A listing passes over it, but not if what is listed is to be carried to another store.
	list := store.ListRequest{Namespace: hourKey("k").Namespace}
	if page, err := w.s.ListRecords(t.Context(), list); err != nil || len(page.Records) != 1 {
		t.Errorf("%d records listed, %v", len(page.Records), err)
	}
	sealed := store.Placement{Epoch: 1, Revision: 1, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveSealed}}
	if _, err := w.s.PlaceNamespace(t.Context(), list.Namespace, sealed); err != nil {
		t.Fatal(err)
	}
	if _, err := w.s.ListRecords(t.Context(), list); !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("listing of a sealed namespace: %v, want ErrRecordCorrupt", err)
	}
}

// A key is found in any bucket in which it can be, with and without filters.
func TestKeyIsFoundInEveryLiveBucket(t *testing.T) {
	w := newWorld(t)
	const buckets = 6
	for i := range buckets {
		w.claim(fmt.Sprint("k", i), "a", true)
		if i < buckets-1 {
			w.clock.Advance(store.TierHour.BucketWidth())
		}
	}
	w.reopen()
	list, err := w.s.Buckets(t.Context())
	if err != nil || len(list) != buckets {
		t.Fatalf("%d buckets, %v; want %d", len(list), err, buckets)
	}
	for i := range buckets {
		if w.claim(fmt.Sprint("k", i), "b", false).Granted != nil {
			t.Errorf("the key of bucket %d was not found", i)
		}
	}
	w.s.background.Wait() // the filters are complete
	for i := range buckets {
		if w.claim(fmt.Sprint("k", i), "c", false).Granted != nil {
			t.Errorf("the key of bucket %d was not found with complete filters", i)
		}
	}
	_ = w.s.do(t.Context(), classSettle, "", 0, func(turn *turn) error {
		for _, b := range turn.l.buckets[store.TierHour] {
			if !b.complete {
				t.Errorf("the filter of bucket %v is not complete", b.id)
			}
		}
		return nil
	})
}

func TestListGoesThroughAllBuckets(t *testing.T) {
	w := newWorld(t)
	for i := range 25 {
		w.claim(fmt.Sprint("k", i), "a", true)
		w.clock.Advance(store.TierHour.BucketWidth() / 5)
	}
	seen := map[string]bool{}
	req := store.ListRequest{Namespace: "hour", PageSize: 7}
	for pages := 1; ; pages++ {
		page, err := w.s.ListRecords(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range page.Records {
			seen[rec.Key.ID] = true
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			if pages != 4 || len(seen) != 25 {
				t.Errorf("%d pages with %d records, want 4 with 25", pages, len(seen))
			}
			break
		}
	}
	for _, token := range []string{"x", "00", req.PageToken + "zz"} {
		_, err := w.s.ListRecords(t.Context(), store.ListRequest{Namespace: "hour", PageToken: token})
		if !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("page token %q: %v, want ErrInvalidArgument", token, err)
		}
	}
}

// A limit from before there was a least one is read as the least: every ending fits.
func TestSmallOutcomeLimitIsRaised(t *testing.T) {
	w := newWorld(t)
	defer func() { mustClose(t, w.s) }()
	for _, test := range []struct{ stored, want int }{{16, 1024}, {1023, 1024}, {1024, 1024}, {2000, 2000}} {
		b := w.s.db.NewIndexedBatch()
		if err := putNamespace(b, &store.Namespace{Name: "small", MaxOutcomeBytes: test.stored}); err != nil {
			t.Fatal(err)
		}
		value, closer, err := b.Get(namespaceKey("small"))
		if err != nil {
			t.Fatal(err)
		}
		ns, err := decodeNamespace(namespaceKey("small"), value)
		if err != nil || ns.MaxOutcomeBytes != test.want {
			t.Errorf("%d stored: %+v, %v; want %d", test.stored, ns, err, test.want)
		}
		if err := errors.Join(closer.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestNamespacesComeBack(t *testing.T) {
	w := newWorld(t)
	ns := store.Namespace{
		Name: "all", Tier: store.TierWeek, Retention: 48 * time.Hour, LapsePolicy: store.Hold,
		Lease: 5 * time.Second, MaxLease: time.Minute, MaxAttempt: time.Hour, MaxOutcomeBytes: 1099,
		Entity: store.EntityForbidden, RecoveryFloor: storetest.Start.Add(time.Nanosecond),
	}
	if _, err := w.s.CreateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Hour)
	ns.Retention = 72 * time.Hour
	want, err := w.s.UpdateNamespace(t.Context(), ns)
	if err != nil || len(want.PastRetentions) != 1 {
		t.Fatalf("%+v, %v; want the past retention kept", want, err)
	}
	w.reopen()
	got, err := w.s.GetNamespace(t.Context(), "all")
	if err != nil || !got.SameSettings(want) || !got.CreatedAt.Equal(want.CreatedAt) ||
		!got.UpdatedAt.Equal(want.UpdatedAt) || len(got.PastRetentions) != 1 ||
		got.PastRetentions[0].Retention != 48*time.Hour || !got.PastRetentions[0].Until.Equal(want.UpdatedAt) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// batches notes how large commits are.
type batches struct {
	Observer
	mu      sync.Mutex
	largest int
}

func (b *batches) Committed(_, bytes int, _ time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.largest = max(b.largest, bytes)
}

// take returns the largest batch since the last call.
func (b *batches) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	largest := b.largest
	b.largest = 0
	return largest
}

// However much evidence callers leave, one commit of maintenance holds little more than the
// most that one key can have.
func TestMaintainMovesEvidenceInSmallBatches(t *testing.T) {
	w := newWorld(t)
	observed := &batches{Observer: w.s.opts.Observer}
	mustClose(t, w.s)
	w.opts.Observer = observed
	w.s = mustOpen(t, w.opts)
	const keys, late = 8, store.MaxEvents
	for i := range keys {
		id := fmt.Sprint("k", i)
		fence := w.claim(id, "a", true).Granted.Fence
		for n := range late {
			body := strings.Repeat(string(rune('A'+n)), store.MaxEvidenceBytes)
			if err := w.complete(id, "other", fence, body); !errors.Is(err, store.ErrStaleFence) {
				t.Fatal(err)
			}
			if err := w.complete(id, "other", fence, body+body); !errors.Is(err, store.ErrStaleFence) {
				t.Fatal(err)
			}
		}
		w.claim(fmt.Sprint("small", i), "a", true)
	}
	observed.take()
	w.clock.Advance(dueIn)
	if report := w.maintain(); report.Moved != 2*keys || len(report.Dropped) != 1 {
		t.Fatalf("%+v, want %d records moved", report, 2*keys)
	}
	const ofOneKey = late*store.MaxEvidenceBytes + 64<<10
	if largest := observed.take(); largest > moveBytes+ofOneKey {
		t.Errorf("a commit of maintenance has %d bytes, want at most %d", largest, moveBytes+ofOneKey)
	}
	for i := range keys {
		if events := w.events(fmt.Sprint("k", i)); len(events) != late {
			t.Errorf("key %d has %d events, want %d", i, len(events), late)
		}
	}
}

// Reading a key with much evidence must not hold up the loop, so it does not need it.
func TestInspectPastTheLoop(t *testing.T) {
	w := newWorld(t)
	fence := w.claim("k", "a", true).Granted.Fence
	if err := w.complete("k", "other", fence, "late"); !errors.Is(err, store.ErrStaleFence) {
		t.Fatal(err)
	}
	letGo := hold(t, w.s)
	defer letGo()
	inspected, err := w.s.InspectRecord(t.Context(), hourKey("k"))
	if err != nil || inspected.Record.Fence != fence || len(inspected.Events) != 1 {
		t.Errorf("%+v, %v; want the record and its event", inspected, err)
	}
	page, err := w.s.ListRecords(t.Context(), store.ListRequest{Namespace: "hour"})
	if err != nil || len(page.Records) != 1 {
		t.Errorf("%+v, %v; want the record listed", page, err)
	}
}

// One call looks at a bounded part of the store, also if it finds nothing there.
func TestListHasABudget(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.claim(fmt.Sprint("k", i), "a", true)
	}
	released := store.ListRequest{Namespace: "hour", Filter: store.Filter{State: store.StateReleased}}
	all := store.ListRequest{Namespace: "hour", PageSize: 3}
	row := len(w.rows()[0])
	for name, c := range map[string]struct {
		req     store.ListRequest
		budget  scanBudget
		pages   int
		records int
	}{
		"rows, nothing found":    {released, scanBudget{rows: 4, bytes: 1 << 20}, 3, 0},
		"rows, all in budget":    {released, scanBudget{rows: 10, bytes: 1 << 20}, 1, 0},
		"bytes, nothing found":   {released, scanBudget{rows: 100, bytes: 4*row - 1}, 3, 0},
		"one row is always read": {released, scanBudget{rows: 100, bytes: 1}, 10, 0},
		"pages that are full":    {all, scanBudget{rows: 100, bytes: 1 << 20}, 4, 10},
		"pages cut short":        {all, scanBudget{rows: 2, bytes: 1 << 20}, 5, 10},
	} {
		pages, records := 0, 0
		for {
			page, err := w.s.readPage(t.Context(), c.req, w.s.read(), c.budget)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			records += len(page.Records)
			if c.req.PageToken = page.NextPageToken; c.req.PageToken == "" {
				break
			}
		}
		if pages != c.pages || records != c.records {
			t.Errorf("%s: %d pages with %d records, want %d with %d", name, pages, records, c.pages, c.records)
		}
	}
}

// rows returns the stored rows.
func (w *world) rows() (rows [][]byte) {
	w.t.Helper()
	it, err := w.s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixRow}, UpperBound: []byte{prefixRow + 1}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		rows = append(rows, bytes.Clone(it.Value()))
	}
	return rows
}

// The budget of a listing is what it says, for a filter that matches nothing.
func TestListLooksAtTenThousandRows(t *testing.T) {
	w := newWorld(t)
	var callers sync.WaitGroup
	for c := range 50 {
		callers.Go(func() {
			for i := range scanRows / 50 {
				_, err := w.s.Claim(context.Background(), store.ClaimRequest{Key: hourKey(fmt.Sprint(c, "-", i)), AttemptID: "a"})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	req := store.ListRequest{Namespace: "hour", Filter: store.Filter{State: store.StateReleased}}
	page, err := w.s.ListRecords(t.Context(), req)
	if err != nil || len(page.Records) != 0 || page.NextPageToken != "" {
		t.Fatalf("%+v, %v; want the only page", page, err)
	}
	w.claim("one more", "a", false)
	if page, err = w.s.ListRecords(t.Context(), req); err != nil || len(page.Records) != 0 || page.NextPageToken == "" {
		t.Fatalf("%+v, %v; want an empty page that has a next one", page, err)
	}
	req.PageToken = page.NextPageToken
	if page, err = w.s.ListRecords(t.Context(), req); err != nil || len(page.Records) != 0 || page.NextPageToken != "" {
		t.Fatalf("%+v, %v; want an empty last page", page, err)
	}
}
