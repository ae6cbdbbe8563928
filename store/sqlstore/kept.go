package sqlstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// lookAgain is after what time a bucket that is kept is read once more: each time that is all
// of its rows.
const lookAgain = 6 * time.Hour

// keptBuckets are those that this replica has found not to be droppable, because something
// live in them is damaged and cannot be moved. It only saves looking at them all the time.
type keptBuckets struct {
	mu      sync.Mutex
	buckets map[bucketID]keptBucket
}

type keptBucket struct {
	since   int64            // when it was looked at, by the database's clock
	damaged map[string]error // its live rows that are damaged, by digest
}

// now says whether a bucket is not to be looked at yet.
func (k *keptBuckets) now(id bucketID, now int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, ok := k.buckets[id]
	return ok && now < b.since+lookAgain.Microseconds()
}

// keep takes note of what is damaged in a bucket, if anything, and returns what was not known.
func (k *keptBuckets) keep(id bucketID, now int64, damaged map[string]error) (fresh map[string]error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.buckets[id].damaged
	delete(k.buckets, id)
	if len(damaged) == 0 {
		return nil
	}
	if k.buckets == nil {
		k.buckets = map[bucketID]keptBucket{}
	}
	k.buckets[id] = keptBucket{since: now, damaged: damaged}
	fresh = map[string]error{}
	for digest, err := range damaged {
		if known[digest] == nil {
			fresh[digest] = err
		}
	}
	return fresh
}

// among forgets the buckets that are not open any more: another replica has retired them.
func (k *keptBuckets) among(open map[store.Tier][]bucketID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.buckets, func(id bucketID, _ keptBucket) bool { return !slices.Contains(open[id.tier], id) })
}

// health says which buckets are kept.
func (k *keptBuckets) health(region string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []error
	for id, b := range k.buckets {
		list = append(list, fmt.Errorf("bucket %s is not dropped: %d of its live rows are damaged and cannot be moved (see the log)", id.table(region), len(b.damaged)))
	}
	return errors.Join(list...)
}
