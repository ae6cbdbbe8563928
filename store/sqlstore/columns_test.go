package sqlstore

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// older makes the open buckets as a release makes them that keeps no unsettled_since.
func (r *rig) older(s *Store) {
	r.t.Helper()
	for _, table := range s.catalog.copy.Load().tables(s.opts.Region) {
		r.exec("ALTER TABLE " + table + " DROP COLUMN unsettled_since")
	}
}

// takenOver is the grant of a key that its first attempt has given up without knowing.
func (r *rig) takenOver(s *Store, key store.Key, attempt string) *store.Granted {
	r.t.Helper()
	answer, err := s.Claim(r.t.Context(), store.ClaimRequest{Key: key, AttemptID: attempt})
	r.must(err)
	if answer.Granted == nil || !answer.Granted.Unsettled {
		r.t.Fatalf("claim of %q: %+v", key.ID, answer)
	}
	return answer.Granted
}

func (r *rig) giveUp(s *Store, key store.Key, attempt string, fence int64) {
	r.t.Helper()
	_, err := s.Release(r.t.Context(), store.ReleaseRequest{Key: key, AttemptID: attempt, Fence: fence, Effect: store.EffectUnknown})
	r.must(err)
}

// What an older release has left in the buckets is read, and gone on with: what it did not keep is
// taken as long ago, also by those that take over later.
func TestBucketsOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	old := r.replica()
	r.giveUp(old, key, "a", r.grant(old, store.ClaimRequest{Key: key, AttemptID: "a"}))
	r.advance(time.Second)
	fence := r.takenOver(old, key, "b").Fence
	r.older(old)

	s := r.replica()
	again := r.takenOver(s, key, "b")
	wantEqual(t, "fence of a Claim sent again", again.Fence, fence)
	wantEqual(t, "since", again.UnsettledSince, store.LongAgo)
	r.giveUp(s, key, "b", fence)
	wantEqual(t, "since, of the next", r.takenOver(s, key, "c").UnsettledSince, store.LongAgo)
	fresh := store.Key{Namespace: store.DefaultNamespace, ID: "fresh"}
	granted := r.now()
	r.giveUp(s, fresh, "a", r.grant(s, store.ClaimRequest{Key: fresh, AttemptID: "a"}))
	r.advance(time.Second)
	wantEqual(t, "since, of a key without a past", r.takenOver(s, fresh, "b").UnsettledSince, granted.UTC())
}

// The migration of the new release brings its region's buckets up to it, while the old one serves.
func TestMigratorCompletesBuckets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.older(s)
	m, err := NewMigrator(t.Context(), r.dsn, r.opts)
	r.must(err)
	defer m.Close()
	status := func() []string {
		status, err := m.Status(t.Context())
		r.must(err)
		wantEqual(t, "pending", status.Pending, []string{})
		return status.Incomplete
	}
	wantEqual(t, "lacking before", status(), slices.Sorted(slices.Values(s.catalog.copy.Load().tables(s.opts.Region))))
	r.migrate()
	wantEqual(t, "lacking after", status(), []string{})
}

// During an upgrade replicas of the older release still write, and know only that a record is
// unsettled: what they have settled is settled, and what they have not has been so for long.
func TestOlderReplicaWritesBesideThisOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	r.giveUp(s, key, "a", r.grant(s, store.ClaimRequest{Key: key, AttemptID: "a"}))
	r.takenOver(s, key, "b")
	table := bucketAt(store.TierDay, r.now().UnixMicro()).table(s.opts.Region)
	for set, want := range map[string]time.Time{
		"unsettled = false":                        {},
		"unsettled = true, unsettled_since = NULL": store.LongAgo,
	} {
		r.exec("UPDATE " + table + " SET " + set)
		answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "b"})
		r.must(err)
		wantEqual(t, set+": since", answer.Granted.UnsettledSince, want)
		wantEqual(t, set+": unsettled", answer.Granted.Unsettled, !want.IsZero())
	}
}

// A bucket that an older replica makes meanwhile is completed when an operation misses its columns.
func TestBucketMadeByAnOlderReplicaMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s, observer, _ := r.opened(r.dsn, time.Hour)
	t.Cleanup(func() { r.must(s.Close()) })
	<-observer.ahead // what Open has said
	r.older(s)
	r.claimable(s, observer, defaultKey("k"))
}

// claimable claims a new key until the store has completed the buckets by itself.
func (r *rig) claimable(s *Store, observer channelObserver, key store.Key) {
	r.t.Helper()
	late := time.After(time.Minute)
	for {
		_, err := s.Claim(r.t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
		if err == nil {
			return
		}
		wantError(r.t, "claim", err, store.ErrUnavailable)
		select {
		case <-observer.ahead:
		case <-late:
			r.t.Fatal("the buckets are not completed: ", err)
		}
	}
}

// readBuckets holds the lock that a pg_dump holds on the open buckets for as long as it runs, until
// end is called.
func (r *rig) readBuckets(s *Store) (end func()) {
	r.t.Helper()
	reader := dial(r.t, r.dsn)
	tx, err := reader.Begin(r.t.Context())
	r.must(err)
	_, err = tx.Exec(r.t.Context(), "LOCK TABLE "+strings.Join(s.catalog.copy.Load().tables(s.opts.Region), ", ")+" IN ACCESS SHARE MODE")
	r.must(err)
	return func() { r.must(tx.Rollback(r.t.Context())) }
}

func defaultKey(id string) store.Key { return store.Key{Namespace: store.DefaultNamespace, ID: id} }

var done = &store.Outcome{Body: []byte("done")}

// While somebody reads the buckets of an older release, so that they cannot be completed, nothing is
// granted in them, because not all that may become of it can be written. What was granted before is
// renewed, completed and released, and what is recorded is told. An operator is told why.
func TestBucketsThatCannotBeCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	old := r.replica()
	r.complete(old, defaultKey("done"), "a")
	fence := r.grant(old, store.ClaimRequest{Key: defaultKey("k"), AttemptID: "a"})
	released := r.grant(old, store.ClaimRequest{Key: defaultKey("released"), AttemptID: "a"})
	r.older(old)
	end := r.readBuckets(old)

	var log bytes.Buffer
	r.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, observer, _ := r.opened(r.dsn, time.Hour)
	t.Cleanup(func() { r.must(s.Close()) })
	<-observer.ahead // what Open has said
	home := bucketAt(store.TierDay, r.now().UnixMicro()).table(s.opts.Region)
	for what, said := range map[string]string{"log": log.String(), "health": errorText(s.Health(t.Context()))} {
		if !strings.Contains(said, home) || !strings.Contains(said, "unsettled_since") {
			t.Errorf("%s of Open does not name %s and its column:\n%s", what, home, said)
		}
	}

	_, err := s.Claim(t.Context(), store.ClaimRequest{Key: defaultKey("new"), AttemptID: "a"})
	wantError(t, "claim", err, store.ErrUnavailable)
	_, err = s.Renew(t.Context(), store.RenewRequest{Key: defaultKey("k"), AttemptID: "a", Fence: fence})
	r.must(err)
	_, err = s.Complete(t.Context(), store.CompleteRequest{Key: defaultKey("k"), AttemptID: "a", Fence: fence, Outcome: done})
	r.must(err)
	_, err = s.Release(t.Context(), store.ReleaseRequest{Key: defaultKey("released"), AttemptID: "a", Fence: released, Effect: store.EffectNone})
	r.must(err)
	for _, id := range []string{"done", "k"} {
		answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: defaultKey(id), AttemptID: "b"})
		r.must(err)
		if answer.Completed == nil {
			t.Errorf("claim of %q, which is completed: %+v", id, answer)
		}
	}

	end()
	r.claimable(s, observer, defaultKey("new"))
}

// In a bucket that has all columns everything goes on, whatever the older ones lack.
func TestOlderBucketsThatCannotBeCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.older(s)
	home := bucketAt(store.TierDay, r.now().UnixMicro())
	end := r.readBuckets(s)
	defer end()
	for r.now().UnixMicro() < bucketAt(store.TierDay, began).end()+2*home.width() { // beyond those that were made ahead
		r.advance(6 * time.Hour)
		r.must(s.catalog.refresh(t.Context()))
		_ = s.provide(t.Context()) // it cannot complete the older ones
	}
	wantEqual(t, "lacking now", slices.Contains(lacking(r, s), bucketAt(store.TierDay, r.now().UnixMicro()).table(s.opts.Region)), false)
	wantEqual(t, "lacking before", slices.Contains(lacking(r, s), home.table(s.opts.Region)), true)

	key := defaultKey("k")
	granted := r.now()
	r.giveUp(s, key, "a", r.grant(s, store.ClaimRequest{Key: key, AttemptID: "a"}))
	next := r.takenOver(s, key, "b")
	wantEqual(t, "since", next.UnsettledSince, granted.UTC())
	_, err := s.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "b", Fence: next.Fence, Outcome: done})
	r.must(err)
}

func lacking(r *rig, s *Store) []string {
	r.t.Helper()
	tables, err := incompleteTables(r.t.Context(), s.pool, s.catalog.copy.Load().tables(s.opts.Region))
	r.must(err)
	return tables
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
