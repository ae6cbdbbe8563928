package pebblestore

import (
	"cmp"
	"context"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// bucket is what the loop knows about a bucket that exists.
type bucket struct {
	id       bucketID
	filter   filter
	complete bool // the filter has all rows; until then they are looked for in Pebble
	writes   int  // grows with every row written; maintenance compares it
}

// mayHold says whether the digest's row can be in the bucket.
func (b *bucket) mayHold(digest store.KeyDigest) bool {
	return !b.complete || b.filter.has(digest)
}

// bucketSet holds the buckets by tier, oldest first.
type bucketSet [len(store.Tiers) + 1][]*bucket

// find returns where the bucket is or would be.
func (s *bucketSet) find(id bucketID) (int, bool) {
	return slices.BinarySearchFunc(s[id.tier], id.start, func(b *bucket, start int64) int {
		return cmp.Compare(b.id.start, start)
	})
}

// get returns the bucket, or nil if it does not exist.
func (s *bucketSet) get(id bucketID) *bucket {
	if i, ok := s.find(id); ok {
		return s[id.tier][i]
	}
	return nil
}

// open returns the bucket, which it makes if it does not exist. A new one is empty.
func (s *bucketSet) open(id bucketID) *bucket {
	list := s[id.tier]
	if n := len(list); n > 0 && list[n-1].id == id {
		return list[n-1]
	}
	i, ok := s.find(id)
	if !ok {
		s[id.tier] = slices.Insert(list, i, &bucket{id: id, complete: true})
	}
	return s[id.tier][i]
}

func (s *bucketSet) remove(id bucketID) {
	if i, ok := s.find(id); ok {
		s[id.tier] = slices.Delete(s[id.tier], i, i+1)
	}
}

// all lists the buckets by tier and start.
func (s *bucketSet) all() (ids []bucketID) {
	for _, list := range s {
		for _, b := range list {
			ids = append(ids, b.id)
		}
	}
	return ids
}

// loadBuckets finds the buckets that have rows, one seek each.
func loadBuckets(db *pebble.DB) (bucketSet, error) {
	var set bucketSet
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixRow}, UpperBound: []byte{prefixRow + 1}})
	if err != nil {
		return set, err
	}
	defer it.Close()
	for ok := it.First(); ok; {
		id, _, valid := splitRowKey(it.Key())
		if !valid {
			return set, errDamagedValue
		}
		set.open(id).complete = false
		_, next := bucketSpan(prefixRow, id)
		ok = it.SeekGE(next)
	}
	return set, it.Error()
}

// Buckets implements [store.Maintainer].
func (s *Store) Buckets(ctx context.Context) ([]store.Bucket, error) {
	var ids []bucketID
	err := s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		ids = t.l.buckets.all()
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := make([]store.Bucket, len(ids))
	for i, id := range ids {
		list[i] = id.describe()
	}
	return list, nil
}

// fillFilters reads which rows the buckets found at open have, in the background. A bucket
// that cannot be read keeps an incomplete filter, and so its keys are refused as damaged.
func (s *Store) fillFilters(ctx context.Context, ids []bucketID) {
	slices.Reverse(ids) // the newest are asked for most
	for _, id := range ids {
		found, err := s.scanFilter(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.damaged(err)
			continue
		}
		_ = s.do(ctx, classSettle, "", 0, func(t *turn) error {
			if b := t.l.buckets.get(id); b != nil {
				b.filter.parts = append(found.parts, b.filter.parts...)
				b.complete = true
			}
			return nil
		})
	}
}

// scanFilter makes a filter of all rows that a bucket has now.
func (s *Store) scanFilter(ctx context.Context, id bucketID) (filter, error) {
	var f filter
	from, to := bucketSpan(prefixRow, id)
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return f, err
	}
	defer it.Close()
	for ok := it.First(); ok && ctx.Err() == nil; ok = it.Next() {
		if _, digest, valid := splitRowKey(it.Key()); valid {
			f.add(digest)
		}
	}
	return f, it.Error()
}
