package sqlstore

import (
	"errors"
	"slices"
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
	lacking, err := s.keeper().incompleteTables(t.Context(), s.catalog.copy.Load())
	r.must(err)
	wantEqual(t, "lacking before", lacking, slices.Sorted(slices.Values(s.catalog.copy.Load().tables(s.opts.Region))))
	r.migrate()
	lacking, err = s.keeper().incompleteTables(t.Context(), s.catalog.copy.Load())
	r.must(err)
	wantEqual(t, "lacking after", lacking, []string{})
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
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	late := time.After(time.Minute)
	for {
		_, err := s.Lookup(t.Context(), store.LookupRequest{Key: key})
		if errors.Is(err, store.ErrKeyNotFound) {
			return // it could look into all buckets
		}
		wantError(t, "lookup", err, store.ErrUnavailable)
		select {
		case <-observer.ahead:
		case <-late:
			t.Fatal("the buckets are not completed: ", err)
		}
	}
}
