package sqlstore

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// carried is what a namespace has, with its events, as it is carried to another store.
func (r *rig) carried(s *Store, namespace string) (records []store.Inspection) {
	r.t.Helper()
	for token := ""; ; {
		page, err := s.ListRecords(r.t.Context(), store.ListRequest{Namespace: namespace, PageToken: token})
		if errors.Is(err, store.ErrUnavailable) { // other tests' transactions on the server are waited for
			continue
		}
		r.must(err)
		for _, rec := range page.Records {
			in, err := s.InspectRecord(r.t.Context(), rec.Key)
			r.must(err)
			in.Now = time.Time{}
			records = append(records, in)
		}
		if token = page.NextPageToken; token == "" {
			slices.SortFunc(records, func(a, b store.Inspection) int { return strings.Compare(a.Record.Key.ID, b.Record.Key.ID) })
			return records
		}
	}
}

func (r *rig) forget(s *Store, revision int64) (calls int) {
	r.t.Helper()
	for more := true; more; calls++ {
		var err error
		more, err = s.ForgetRecords(r.t.Context(), moving, revision, nil)
		r.must(err)
	}
	return calls
}

// rows counts the rows that are not markers in all buckets.
func (r *rig) rows(s *Store, region string, key store.Key) (n int) {
	r.t.Helper()
	digest := key.Digest()
	for _, id := range s.catalog.copy.Load().buckets[store.TierHour] {
		n += read[int](r, fmt.Sprintf("SELECT count(*) FROM %s WHERE digest = $1 AND state <> %d", id.table(region), stateMoved), digest[:])
	}
	return n
}

// kinds makes a record of each kind that can be carried over.
func (r *rig) kinds(s *Store) {
	r.t.Helper()
	ctx := r.t.Context()
	keep := func(id string) held { return r.hold(s, 1, id) }
	keep("in progress")
	taken := keep("taken over, with evidence")
	_, err := s.Release(ctx, store.ReleaseRequest{Key: taken.key, AttemptID: "a", Fence: taken.fence, Effect: store.EffectUnknown, Epoch: 1})
	r.must(err)
	_, err = s.Claim(ctx, store.ClaimRequest{Key: taken.key, AttemptID: "b", Epoch: 1, Hold: true})
	r.must(err)
	_, err = s.Complete(ctx, store.CompleteRequest{Key: taken.key, AttemptID: "a", Fence: taken.fence, Outcome: &store.Outcome{Body: []byte("late")}, Epoch: 1})
	wantError(r.t, "late complete", err, store.ErrStaleFence)
	for i := range 3 {
		large := keep(fmt.Sprint("large ", i))
		_, err = s.Complete(ctx, store.CompleteRequest{
			Key: large.key, AttemptID: "a", Fence: large.fence, Epoch: 1,
			Outcome: &store.Outcome{Body: bytes.Repeat([]byte{byte(i)}, 250<<10), Header: []store.MetadataEntry{{Name: "a", Value: []byte("b")}}},
		})
		r.must(err)
	}
	empty := keep("empty outcome")
	_, err = s.Complete(ctx, store.CompleteRequest{Key: empty.key, AttemptID: "a", Fence: empty.fence, Outcome: &store.Outcome{}, Epoch: 1})
	r.must(err)
	released := keep("released")
	_, err = s.Release(ctx, store.ReleaseRequest{Key: released.key, AttemptID: "a", Fence: released.fence, Effect: store.EffectNone, Epoch: 1})
	r.must(err)
}

// replicaOf is a replica of another region on the same database.
func (r *rig) replicaOf(region string) *Store {
	r.t.Helper()
	before := r.opts.Region
	defer func() { r.opts.Region = before }()
	r.opts.Region = region
	return r.replica()
}

// Two regions have their tables in one database, and one process serves both. They share the
// namespace and its placement; its records are carried from one to the other.
func TestRegionsShareDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	eu, us := r.replicaOf("eu"), r.replicaOf("us")
	r.placed(eu)
	r.catchUp(us) // makes the buckets of a tier that is new to it
	r.kinds(eu)
	far := r.hold(us, 1, "in progress") // the same key, as a caller with another map would have it
	r.place(us, 1, 2, store.MoveSealed)
	r.catchUp(eu)
	before := r.carried(eu, moving)
	wantEqual(t, "records", len(before), 7)

	r.forget(us, 2)
	wantEqual(t, "rows forgotten in us", r.rows(us, "us", far.key), 0)
	for range 2 {
		r.must(us.ImportRecords(t.Context(), moving, 2, before))
	}
	same := func(what string, got []store.Inspection) {
		t.Helper()
		if !reflect.DeepEqual(got, before) {
			t.Fatalf("%s: want %+v, got %+v", what, before, got)
		}
	}
	same("carried over", r.carried(us, moving))
	same("left behind", r.carried(eu, moving))

	r.place(eu, 2, 3, store.MoveFlipped)
	r.forget(eu, 3)
	wantEqual(t, "left behind after forgetting", len(r.carried(eu, moving)), 0)
	same("in its new home", r.carried(us, moving))
	r.catchUp(us)
	answer, err := us.Claim(t.Context(), store.ClaimRequest{Key: before[0].Record.Key, AttemptID: "repeat", Epoch: 2})
	r.must(err)
	if answer.Completed == nil {
		t.Fatalf("repeat of %q: %+v", before[0].Record.Key.ID, answer)
	}
}

// One process serves two regions of a database at once, each with its own maintenance, and
// nothing of one is met in the other.
func TestRegionsSideBySide(t *testing.T) {
	t.Parallel()
	dsn := pgtest.New(t, pgtest.Fast).NewDatabase(t) // of its own: a seal waits for all transactions
	migrateUp(t, dsn, Options{Region: "eu"})
	regions := map[string]*Store{}
	for _, region := range []string{"eu", "us"} {
		s := open(t, dsn, Options{Region: region, MaxConns: 4})
		defer closeStore(t, s)
		regions[region] = s
	}
	ns := store.Namespace{Name: "shared", Retention: time.Hour}
	for _, s := range regions { // makes the buckets of its tier; the second finds the namespace there
		if _, err := s.CreateNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	key := store.Key{Namespace: "shared", ID: "k"}
	for region, s := range regions {
		answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: region})
		if err != nil || answer.Granted == nil || answer.Granted.AttemptNumber != 1 {
			t.Fatalf("claim in %s: %+v, %v", region, answer, err)
		}
		if _, err := s.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		page, err := s.ListRecords(t.Context(), store.ListRequest{Namespace: "shared"})
		if err != nil || len(page.Records) != 1 || page.Records[0].AttemptID != region {
			t.Fatalf("records in %s: %+v, %v", region, page.Records, err)
		}
	}
	_, ok, err := regions["us"].lockMaintenance(t.Context())
	_, also, other := regions["eu"].lockMaintenance(t.Context())
	if !ok || !also || err != nil || other != nil {
		t.Fatalf("the keys of maintenance: %v, %v; %v, %v", ok, err, also, other)
	}
}

// A record takes the place of one with no higher fence, in whichever bucket that is, and of no
// other.
func TestImportTakesTheHigherFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	lower, same, higher := r.hold(s, 1, "lower"), r.hold(s, 1, "same"), r.hold(s, 1, "higher")
	r.place(s, 1, 2, store.MoveSealed)
	var records []store.Inspection
	for h, fence := range map[held]int64{lower: lower.fence + 1, same: same.fence, higher: higher.fence - 1} {
		in, err := s.InspectRecord(t.Context(), h.key)
		r.must(err)
		rec := *in.Record
		rec.Fence, rec.AttemptID = fence, "imported"
		records = append(records, store.Inspection{Record: &rec})
	}
	double := *records[0].Record
	double.Key.ID, double.Fence = "double", 7
	first := double
	first.Fence, first.AttemptID = 6, "first"
	records = append(records, store.Inspection{Record: &double}, store.Inspection{Record: &first})
	check := func() {
		t.Helper()
		for key, want := range map[store.Key]string{lower.key: "imported", same.key: "imported", higher.key: "a", double.Key: "imported"} {
			in, err := s.InspectRecord(t.Context(), key)
			r.must(err)
			wantEqual(t, "attempt of "+key.ID, in.Record.AttemptID, want)
			wantEqual(t, "rows of "+key.ID, r.rows(s, "local", key), 1)
		}
	}
	r.set(bucketAt(store.TierHour, began).end() + (time.Minute).Microseconds())
	r.catchUp(s)
	r.must(s.ImportRecords(t.Context(), moving, 2, records))
	check()
	for i, in := range records[:3] {
		older := *in.Record
		older.Fence, older.AttemptID = older.Fence-1, "older"
		records[i].Record = &older
	}
	r.must(s.ImportRecords(t.Context(), moving, 2, records[:3]))
	check()
}

// Nothing of what is refused is stored.
func TestImportRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	h := r.hold(s, 1, "held")
	good, err := s.InspectRecord(t.Context(), h.key)
	r.must(err)
	other := *good.Record
	other.Key.Namespace = store.DefaultNamespace
	wantError(t, "not sealed", s.ImportRecords(t.Context(), moving, 1, []store.Inspection{good}), store.ErrWrongRegion)
	r.place(s, 1, 2, store.MoveSealed)
	r.forget(s, 2)
	wantError(t, "another revision", s.ImportRecords(t.Context(), moving, 1, []store.Inspection{good}), store.ErrWrongRegion)
	wantError(t, "another namespace", s.ImportRecords(t.Context(), moving, 2, []store.Inspection{good, {Record: &other}}), store.ErrInvalidArgument)
	wantError(t, "no namespace", s.ImportRecords(t.Context(), "nowhere", 2, nil), store.ErrNamespaceUnknown)
	wantEqual(t, "rows", r.rows(s, "local", h.key), 0)
}

// An imported record whose time is over for its bucket is moved on with it, if it is live.
func TestImportedRecordOutlivesBucket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	h := r.hold(s, 1, "held")
	r.place(s, 1, 2, store.MoveSealed)
	in, err := s.InspectRecord(t.Context(), h.key)
	r.must(err)
	rec := *in.Record
	rec.Fence++
	rec.LapsePolicy, rec.ExpiresAt = store.Hold, time.Time{}
	r.must(s.ImportRecords(t.Context(), moving, 2, []store.Inspection{{Record: &rec}}))
	home := bucketAt(store.TierHour, began)
	r.set(home.dropAfter() + time.Minute.Microseconds())
	r.catchUp(s)
	_, err = s.Maintain(t.Context())
	r.must(err)
	got, err := s.InspectRecord(t.Context(), h.key)
	r.must(err)
	wantEqual(t, "the record", *got.Record, rec)
	wantEqual(t, "its bucket is open", slices.Contains(s.catalog.copy.Load().buckets[store.TierHour], home), false)
}

// Records are forgotten in calls of bounded length, those that have expired too, in all
// buckets. Other namespaces' stay.
func TestForgetRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	r.hold(s, 1, "old")
	b := bucketAt(store.TierHour, began)
	r.set(b.end() + (time.Minute).Microseconds())
	r.catchUp(s)
	r.hold(s, 1, "new")
	neighbour := store.Key{Namespace: moving + "-more", ID: "new"}
	_, err := s.CreateNamespace(t.Context(), store.Namespace{Name: neighbour.Namespace, Retention: time.Hour})
	r.must(err)
	r.grant(s, store.ClaimRequest{Key: neighbour, AttemptID: "a"})
	// So many that several calls are needed, between others' rows.
	n := forgetRows*forgetPages + 1
	for prefix, rows := range map[string]int{moving: n, neighbour.Namespace: 3000} {
		r.exec(fmt.Sprintf(`INSERT INTO %s (digest, key, state, expires_at) SELECT sha256((x || $1)::bytea), $2::bytea || x::text::bytea, 1, 1 FROM generate_series(1, $3::int8) AS x`,
			b.next().table("local")), prefix, namespacePrefix(prefix), rows)
	}
	_, err = s.ForgetRecords(t.Context(), moving, 1, nil)
	wantError(t, "not moving", err, store.ErrWrongRegion)
	r.place(s, 1, 2, store.MoveSealed)
	_, err = s.ForgetRecords(t.Context(), moving, 1, nil)
	wantError(t, "another revision", err, store.ErrWrongRegion)
	_, err = s.ForgetRecords(t.Context(), "nowhere", 1, nil)
	wantError(t, "no namespace", err, store.ErrNamespaceUnknown)
	if calls := r.forget(s, 2); calls < 2 {
		t.Fatalf("%d rows were forgotten in %d calls", n, calls)
	}
	for _, id := range []bucketID{b, b.next()} {
		left := read[int](r, fmt.Sprintf("SELECT count(*) FROM %s WHERE substring(key from 1 for %d) = $1", id.table("local"), len(namespacePrefix(moving))), namespacePrefix(moving))
		wantEqual(t, "rows left in "+id.table("local"), left, 0)
	}
	wantEqual(t, "neighbour's rows", read[int](r, "SELECT count(*) FROM "+b.next().table("local")+" WHERE key <> ''"), 3001)
	// Once more, it begins at the beginning.
	r.must(s.ImportRecords(t.Context(), moving, 2, []store.Inspection{{Record: r.record(neighbour, s)}}))
	wantEqual(t, "calls for the rest", r.forget(s, 2), 1)
	wantEqual(t, "records", len(r.carried(s, moving)), 0)
}

// record is a key's record, under namespace "moving".
func (r *rig) record(key store.Key, s *Store) *store.Record {
	r.t.Helper()
	in, err := s.InspectRecord(r.t.Context(), key)
	r.must(err)
	rec := *in.Record
	rec.Key.Namespace = moving
	return &rec
}
