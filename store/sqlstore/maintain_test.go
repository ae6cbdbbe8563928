package sqlstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
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
