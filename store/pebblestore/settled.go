package pebblestore

import (
	"sync"

	"github.com/idemd/idemd/store"
)

// settled holds completed rows that are known to be synced, so that repeats are answered
// without the loop. A completed row does not change until it has expired, which the
// transition functions see from the clock. Only what a namespace that moves imports or forgets
// is taken back, before the import or the removal is answered.
type settled struct {
	shards [settledShards]struct {
		mu    sync.Mutex
		cache *cache
	}
}

const settledShards = 16

// settledRow is a completed row on its way into settled; without a row, what is there goes.
type settledRow struct {
	digest store.KeyDigest
	row    *row
}

func newSettled(limit int) *settled {
	s := &settled{}
	for i := range s.shards {
		s.shards[i].cache = newCache(limit / settledShards)
	}
	return s
}

func (s *settled) get(digest store.KeyDigest) *row {
	shard := &s.shards[digest[len(digest)-1]%settledShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.cache.get(digest)
}

// put adds rows that are synced, in the order in which they became so.
func (s *settled) put(rows []settledRow) {
	for _, r := range rows {
		shard := &s.shards[r.digest[len(r.digest)-1]%settledShards]
		shard.mu.Lock()
		if r.row == nil {
			shard.cache.remove(r.digest)
		} else {
			shard.cache.put(r.digest, r.row)
			shard.cache.trim()
		}
		shard.mu.Unlock()
	}
}

// repeat runs an operation on a completed row without the loop. It reports false if the
// operation has to go through the loop: because the row is not here or has expired, because
// something is to be written (evidence), or because the answer would be derived from a time
// or a namespace that is not synced, or later than the last commit before Close.
func (s *Store) repeat(key *store.Key, digest store.KeyDigest, decide transition) (bool, error) {
	r := s.settled.get(digest)
	if r == nil || r.rec.Key != *key || s.failureOr(nil) != nil {
		return false, nil
	}
	durable, known := s.durable.Load(), s.known.load()
	now := s.clock.glance()
	ns := known.namespaces[key.Namespace]
	if s.ending.Load() { // asked after the time, so that the last commit's is not before it
		return false, nil
	}
	if ns == nil || known.seq > durable.seq || now.After(durable.until) || r.rec.Expired(now) {
		return false, nil
	}
	change, refusal := decide(r.rec, ns, now)
	return change == store.Change{}, refusal
}
