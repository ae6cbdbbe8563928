package sqlstore

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
)

func (r *rig) maintain(s *Store) store.Maintenance {
	r.t.Helper()
	r.catchUp(s)
	report, err := s.Maintain(r.t.Context())
	r.must(err)
	return report
}

func (r *rig) exists(table string) bool {
	r.t.Helper()
	return read[bool](r, "SELECT to_regclass($1) IS NOT NULL", table)
}

func hourly(policy store.LapsePolicy) store.Namespace {
	ns := store.Namespace{Name: "hourly", Retention: time.Hour, LapsePolicy: policy}
	return ns
}

func TestBucketIsRetiredAndDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s, other := r.replica(), r.replica()
	_, err := s.CreateNamespace(t.Context(), hourly(store.Hold))
	r.must(err)
	held, settled := store.Key{Namespace: "hourly", ID: "held"}, store.Key{Namespace: "hourly", ID: "settled"}
	fence := r.grant(s, store.ClaimRequest{Key: held, AttemptID: "a"})
	r.complete(s, settled, "b")
	old := bucketAt(store.TierHour, began)
	table := old.table("local")

	// Until nothing but what is held can be live, the bucket stays.
	r.set(old.dropAfter() + s.seal.window - 1)
	wantEqual(t, "too early", r.maintain(s), store.Maintenance{})

	// Then what is held moves on, under its fence, and is found by who knows it or not.
	r.set(old.dropAfter() + s.seal.window)
	report := r.maintain(s)
	wantEqual(t, "report", report, store.Maintenance{Dropped: []store.Bucket{old.describe()}, Moved: 1})
	buckets, err := s.Buckets(t.Context())
	r.must(err)
	if len(buckets) == 0 || buckets[0] == old.describe() {
		t.Fatalf("the retired bucket is listed: %+v", buckets)
	}
	for _, replica := range []*Store{s, other} {
		inspection, err := replica.InspectRecord(t.Context(), held)
		r.must(err)
		wantEqual(t, "fence", inspection.Record.Fence, fence)
		_, err = replica.InspectRecord(t.Context(), settled)
		wantError(t, "what had expired", err, store.ErrKeyNotFound)
	}

	// The table goes when no copy of the registry has it any more.
	r.advance(copyLag - time.Microsecond)
	wantEqual(t, "report", r.maintain(s), store.Maintenance{})
	wantEqual(t, "table is there", r.exists(table), true)
	r.advance(time.Microsecond)
	wantEqual(t, "report", r.maintain(s), store.Maintenance{})
	wantEqual(t, "table is there", r.exists(table), false)
	wantEqual(t, "rows of the registry", read[int](r, "SELECT count(*) FROM idem_buckets WHERE start_us = $1 AND tier = $2", old.start, int16(old.tier)), 0)
	_, err = s.InspectRecord(t.Context(), held)
	r.must(err)
}

// More rows than one statement looks at, live ones all over.
func TestRetireManyRows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	_, err := s.CreateNamespace(t.Context(), hourly(store.Hold))
	r.must(err)
	old := bucketAt(store.TierHour, began)
	r.exec("INSERT INTO " + old.table("local") + " (digest, state) SELECT sha256(n::text::bytea), 4 FROM generate_series(1, 5000) AS n")
	const held = 70
	for n := range held {
		r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: "hourly", ID: fmt.Sprint(n)}, AttemptID: "a"})
	}
	r.set(old.dropAfter() + s.seal.window)
	wantEqual(t, "moved", r.maintain(s).Moved, held)
}

// One replica at a time retires buckets; the others neither wait nor fail. One that dies is
// followed by another.
func TestOneReplicaRetires(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s, other := r.replica(), r.replica()
	old := bucketAt(store.TierHour, began)
	r.set(old.dropAfter() + s.seal.window)
	r.catchUp(s)
	r.catchUp(other)
	release, ok, err := other.lockMaintenance(t.Context())
	r.must(err)
	wantEqual(t, "the other has the key", ok, true)
	wantEqual(t, "retired meanwhile", len(r.maintain(s).Dropped), 0)
	release()
	if _, ok, err = other.lockMaintenance(t.Context()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	r.advance(maintenanceLease) // it has died
	wantEqual(t, "retired after its lease", len(r.maintain(s).Dropped) > 0, true)
}

// A table that is read does not hold up maintenance for long, and goes later.
func TestDropOfATableInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	old := bucketAt(store.TierHour, began)
	r.set(old.dropAfter() + s.seal.window)
	r.maintain(s)
	r.advance(copyLag)
	r.catchUp(s)
	tx := r.writer()
	_, err := tx.Exec(t.Context(), "SELECT * FROM "+old.table("local"))
	r.must(err)
	if _, err := s.Maintain(t.Context()); err == nil || !strings.Contains(err.Error(), "drop bucket "+old.table("local")) {
		t.Fatalf("a table in use: %v", err)
	}
	r.must(tx.Rollback(t.Context()))
	r.maintain(s)
	wantEqual(t, "table is there", r.exists(old.table("local")), false)
}

// A bucket that ought not to have live rows any more but has some is not dropped.
func TestRetiredBucketWithLiveRows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	old := bucketAt(store.TierHour, began)
	r.set(old.dropAfter() + s.seal.window)
	r.maintain(s)
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	digest := key.Digest()
	r.exec("INSERT INTO "+old.table("local")+" (digest, state, key) VALUES ($1, 1, $2)", digest[:], key.AppendEncoded(nil))
	r.advance(copyLag)
	r.catchUp(s)
	if _, err := s.Maintain(t.Context()); err == nil || !strings.Contains(err.Error(), "opened again") {
		t.Fatal(err)
	}
	wantEqual(t, "table is there", r.exists(old.table("local")), true)
	wantEqual(t, "state", read[int](r, "SELECT state FROM idem_buckets WHERE start_us = $1 AND tier = $2", old.start, int16(old.tier)), bucketOpen)
}

// A live row that is damaged cannot be moved. Its bucket stays, and is not read all the time;
// the other rows move.
func TestDamagedRowKeepsItsBucket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	observer := &damageObserver{}
	r.opts.Observer = observer
	r.migrate()
	proxy := pgfault.New(t, r.dsn)
	pages := proxy.Add(pgfault.Rule{Match: pageText, Do: pgfault.Rewrite("$0")})
	r.dsn = proxy.DSN()
	s := r.replica()
	_, err := s.CreateNamespace(t.Context(), hourly(store.Hold))
	r.must(err)
	keys := make([]store.Key, 5)
	for i := range keys {
		keys[i] = store.Key{Namespace: "hourly", ID: fmt.Sprint(i)}
		r.grant(s, store.ClaimRequest{Key: keys[i], AttemptID: "a"})
	}
	old := bucketAt(store.TierHour, began)
	digest := keys[2].Digest()
	r.exec("UPDATE "+old.table("local")+" SET lapse_policy = 9 WHERE digest = $1", digest[:])
	r.exec("INSERT INTO " + old.table("local") + ` (digest, state) VALUES ('\x8000', 1)`) // no digest
	r.set(old.dropAfter() + s.seal.window)
	wantEqual(t, "report", r.maintain(s), store.Maintenance{Moved: 4})
	wantEqual(t, "reported", observer.damaged, 2)
	health := s.Health(t.Context())
	if health == nil || !strings.Contains(health.Error(), "bucket "+old.table("local")+" is not dropped: 2 of its live rows are damaged") {
		t.Fatal(health)
	}
	_, err = s.InspectRecord(t.Context(), keys[2])
	wantError(t, "the damaged key", err, store.ErrRecordCorrupt)
	_, err = s.ListRecords(t.Context(), store.ListRequest{Namespace: "hourly", PageSize: 1})
	r.must(err)

	observer.damaged = 0
	read := pages.Fired()
	r.advance(lookAgain - time.Microsecond)
	r.maintain(s)
	for _, id := range s.due(s.catalog.copy.Load()) {
		if id == old {
			t.Fatal("a bucket that is kept is due")
		}
	}
	wantEqual(t, "buckets kept", len(s.kept.buckets), 1)
	r.advance(time.Microsecond)
	wantEqual(t, "looked at again", r.maintain(s), store.Maintenance{})
	if pages.Fired() == read {
		t.Fatal("it was not looked at again")
	}
	wantEqual(t, "reported again", observer.damaged, 0)

	other := r.replica() // finds the same, and that it is gone when s has dropped it
	r.maintain(other)
	wantEqual(t, "kept by the other", len(other.kept.buckets), 1)

	r.exec("DELETE FROM "+old.table("local")+" WHERE digest IN ($1, $2)", digest[:], []byte{0x80, 0})
	r.advance(lookAgain)
	wantEqual(t, "dropped when it is repaired", r.maintain(s).Dropped[0], old.describe())
	r.must(s.Health(t.Context()))
	r.maintain(other)
	r.must(other.Health(t.Context()))
}

// A page that the server cannot read keeps its bucket too.
func TestDamagedPageKeepsItsBucket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	observer := &damageObserver{}
	r.opts.Observer = observer
	r.migrate()
	proxy := pgfault.New(t, r.dsn)
	r.dsn = proxy.DSN()
	s := r.replica()
	old := bucketAt(store.TierHour, began)
	proxy.Add(pgfault.Rule{Match: regexp.MustCompile("^SELECT digest FROM " + old.table("local") + " "), Do: pgfault.Fail("XX001")})
	r.set(old.dropAfter() + s.seal.window)
	for range 2 {
		if report := r.maintain(s); len(report.Dropped) > 0 && report.Dropped[0] == old.describe() {
			t.Fatal("it was retired")
		}
	}
	wantEqual(t, "reported", observer.damaged, 1)
}

// While nobody can say whose clock is wrong, nothing is dropped because of the time.
func TestNothingIsRetiredWhileTheClockIsSuspect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	behind := maxApart + time.Second
	r.opts.Wall = func() time.Time { return r.now().Add(-behind) }
	r.migrate()
	s := r.replica()
	old := bucketAt(store.TierHour, began)
	r.set(old.dropAfter() + s.seal.window)
	wantEqual(t, "report", r.maintain(s), store.Maintenance{})
	if err := s.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "clock") {
		t.Fatal(err)
	}
	behind = 0
	wantEqual(t, "retired when they agree", len(r.maintain(s).Dropped) > 0, true)
	r.must(s.Health(t.Context()))
}
