package pebblestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

const (
	// scanChunk is how many rows are read at a stretch. After each the loop is waited
	// for, so that maintenance goes slower the more the store has to do.
	scanChunk = 1024
	// One operation moves forward at most moveRows live rows, and stops when it has written
	// moveBytes: a row can have half a megabyte of outcome and events, and while it moves
	// everybody waits.
	moveRows  = 64
	moveBytes = 256 << 10
	// scanAttempts is how often a bucket is read again because a row in it was written
	// meanwhile; after that it waits for the next run.
	scanAttempts = 3
)

// Maintain implements [store.Maintainer]. A bucket with a damaged row is not dropped,
// because that row may be live.
func (s *Store) Maintain(ctx context.Context) (store.Maintenance, error) {
	return past(s, func() (store.Maintenance, error) {
		s.maintain.Lock()
		defer s.maintain.Unlock()
		due, err := s.dueBuckets(ctx)
		if err != nil {
			return store.Maintenance{}, err
		}
		var report store.Maintenance
		var failed []error
		for _, id := range due {
			if err := s.retire(ctx, id, &report); err != nil {
				failed = append(failed, err)
			}
			if err := ctx.Err(); err != nil {
				return report, err
			}
		}
		return report, errors.Join(failed...)
	})
}

// maintainEvery runs Maintain until ctx ends.
func (s *Store) maintainEvery(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		report, err := s.Maintain(ctx)
		if err != nil && ctx.Err() == nil {
			s.opts.Logger.Error("maintenance failed; it will be tried again", "error", err)
		}
		for _, b := range report.Dropped {
			s.opts.Logger.Info("bucket dropped", "retention_up_to", b.Tier.MaxRetention(), "start", b.Start, "end", b.End)
		}
	}
}

// dueBuckets returns the buckets in which nothing can be live but what is to be moved.
func (s *Store) dueBuckets(ctx context.Context) (due []bucketID, err error) {
	err = s.do(ctx, classSettle, "", 0, func(t *turn) error {
		for _, id := range t.l.buckets.all() {
			if !t.now.Before(id.dropAfter()) {
				due = append(due, id)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return due, nil
}

// retire moves what is live out of the bucket and drops it. An expired row stays expired,
// so what is not live when it is scanned needs no second look; but a row that is still
// live may be written in place before its turn to move comes, and is then read again.
func (s *Store) retire(ctx context.Context, id bucketID, report *store.Maintenance) error {
	for range scanAttempts {
		writes, err := s.writesOf(ctx, id)
		if err != nil {
			return err
		}
		if err := s.moveLive(ctx, id, report); err != nil {
			return fmt.Errorf("bucket of %v: %w", id.describe().Start, err)
		}
		dropped, err := s.dropUnwritten(ctx, id, writes)
		if err != nil {
			return err
		}
		if dropped {
			report.Dropped = append(report.Dropped, id.describe())
			return nil
		}
	}
	return nil
}

// writesOf returns how many rows have been written to the bucket in place.
func (s *Store) writesOf(ctx context.Context, id bucketID) (writes int, err error) {
	err = s.do(ctx, classSettle, "", 0, func(t *turn) error {
		if b := t.l.buckets.get(id); b != nil {
			writes = b.writes
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return writes, nil
}

// dropUnwritten drops the bucket if nothing was written to it since writesOf.
func (s *Store) dropUnwritten(ctx context.Context, id bucketID, writes int) (dropped bool, err error) {
	err = s.do(ctx, classSettle, "", 0, func(t *turn) error {
		if b := t.l.buckets.get(id); b != nil && b.writes == writes {
			t.drop(id)
			dropped = true
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return dropped, nil
}

// drop removes the bucket with all rows and events.
func (t *turn) drop(id bucketID) {
	for _, prefix := range [...]byte{prefixRow, prefixEvent} {
		from, to := bucketSpan(prefix, id)
		_ = t.writes().DeleteRange(from, to, nil)
	}
	t.l.buckets.remove(id)
}

// moveLive scans the bucket and moves its live rows into the current one.
func (s *Store) moveLive(ctx context.Context, id bucketID, report *store.Maintenance) error {
	from, to := bucketSpan(prefixRow, id)
	for from != nil {
		now, err := s.barrier(ctx, "")
		if err != nil {
			return err
		}
		live, next, err := s.scanLive(ctx, from, to, now)
		if err != nil {
			return err
		}
		for len(live) > 0 {
			seen, moved, err := s.moveForward(ctx, id, live)
			if err != nil {
				return err
			}
			report.Moved += moved
			live = live[seen:]
		}
		from = next
	}
	return nil
}

// scanLive reads a chunk of rows and returns the digests of those that are live at now,
// and where to go on; nil at the end.
func (s *Store) scanLive(ctx context.Context, from, to []byte, now time.Time) (live []store.KeyDigest, next []byte, err error) {
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return nil, nil, readError(err)
	}
	defer it.Close()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n++; n > scanChunk {
			return live, bytes.Clone(it.Key()), nil
		}
		expired, digest, err := expiredRow(it.Key(), it.Value(), now)
		if err != nil {
			s.damaged(err)
			return nil, nil, corrupt(err)
		}
		if !expired {
			live = append(live, digest)
		}
	}
	if err := it.Error(); err != nil {
		s.damaged(err)
		return nil, nil, readError(err)
	}
	return live, nil, nil
}

func expiredRow(key, value []byte, now time.Time) (bool, store.KeyDigest, error) {
	_, digest, ok := splitRowKey(key)
	if !ok {
		return false, digest, fmt.Errorf("row %x: %w", key, errDamagedValue)
	}
	payload, err := unseal(key, value)
	if err != nil {
		return false, digest, fmt.Errorf("row %x: %w", key, err)
	}
	at, err := peekExpiry(payload)
	return !at.IsZero() && !now.Before(at), digest, err
}

// moveForward moves the first of the rows into the current bucket, as many as one operation
// may. It returns how many it has seen to, and how many of those were still live and moved.
func (s *Store) moveForward(ctx context.Context, id bucketID, digests []store.KeyDigest) (seen, moved int, err error) {
	err = s.do(ctx, classSettle, "", 0, func(t *turn) error {
		full := t.writes().Len() + moveBytes
		for seen < min(moveRows, len(digests)) && t.writes().Len() < full {
			ok, err := t.moveForward(id, digests[seen])
			if err != nil {
				return err
			}
			if ok {
				moved++
			}
			seen++
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return seen, moved, nil
}

func (t *turn) moveForward(id bucketID, digest store.KeyDigest) (bool, error) {
	old := t.l.cache.get(digest)
	if old == nil && !t.gone[digest] {
		var err error
		if old, err = readRow(t.l.s.db, appendRowKey(nil, id, digest)); err != nil {
			t.l.s.damaged(err)
			return false, err
		}
	}
	if old == nil || old.bucket != id || old.rec.Expired(t.now) {
		return false, nil // it has moved or ended meanwhile
	}
	next := *old
	next.bucket = bucketOf(id.tier, t.now)
	if err := t.carryEvents(digest, old, &next); err != nil {
		t.l.s.damaged(err)
		return false, err
	}
	t.put(digest, old, &next)
	return true, nil
}
