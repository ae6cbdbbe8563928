package pebblestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// reading is what an answer that is read from Pebble past the loop depends on beside the
// rows. Its time is from before the rows are read, so that none that was written meanwhile
// can look older than it is.
type reading struct {
	known *knownNamespaces
	now   time.Time
}

func (s *Store) read() reading {
	return reading{known: s.known.load(), now: s.clock.Now()}
}

// vouch returns when nothing that was read from Pebble since can be lost any more: neither
// rows nor namespaces nor the time. Mostly that is so already; else the loop knows when.
func (s *Store) vouch(ctx context.Context, namespace string, r reading) error {
	newest := max(s.pruner.applied.Load(), r.known.seq)
	if durable := s.durable.Load(); durable.seq >= newest && !r.now.After(durable.until) {
		return s.failureOr(nil)
	}
	_, err := s.barrier(ctx, namespace)
	return err
}

// barrier returns the store's time when all that could be read from Pebble before the
// call is synced. It waits in the namespace's share.
func (s *Store) barrier(ctx context.Context, namespace string) (time.Time, error) {
	var now time.Time
	err := s.do(ctx, classSettle, namespace, 0, func(t *turn) error {
		now = t.now
		return nil
	})
	if err != nil {
		return time.Time{}, err
	}
	return now, nil
}

// view is rows and events as they are at one moment. It is an iterator, because a snapshot
// of Pebble's is not to be had any more once Pebble has given up and keeps its lock.
type view struct{ it *pebble.Iterator }

func (s *Store) view(ctx context.Context) (view, error) {
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{
		LowerBound: []byte{prefixEvent}, UpperBound: []byte{prefixRow + 1},
	})
	if err != nil {
		return view{}, readError(err)
	}
	return view{it}, nil
}

// inspect reads a live record with its events as of the view.
func (v view) inspect(key *store.Key, read reading) (store.Inspection, error) {
	digest := key.Digest()
	r, err := v.find(read.known.namespaces[key.Namespace].Tier, digest)
	if err != nil {
		return store.Inspection{}, err
	}
	if r == nil || r.rec.Expired(read.now) {
		return store.Inspection{}, store.KeyNotFound()
	}
	if r.rec.Key != *key {
		return store.Inspection{}, corrupt(errors.New("the record is of another key"))
	}
	payloads, err := readEvents(v.value, digest, r)
	if err != nil {
		return store.Inspection{}, err
	}
	inspection := store.Inspection{Record: r.rec, Now: read.now}
	for _, payload := range payloads {
		event, err := decodeEvent(payload)
		if err != nil {
			return store.Inspection{}, corrupt(err)
		}
		inspection.Events = append(inspection.Events, event)
	}
	return inspection, nil
}

// find returns the row of a key, or nil. It goes from bucket to bucket as they are stored,
// because only the loop knows which there are.
func (v view) find(tier store.Tier, digest store.KeyDigest) (*row, error) {
	from, to := tierSpan(tier)
	for ok := v.it.SeekGE(from); ok && bytes.Compare(v.it.Key(), to) < 0; {
		bucket, _, known := splitRowKey(v.it.Key())
		if !known {
			return nil, corrupt(fmt.Errorf("row %x: %w", v.it.Key(), errDamagedValue))
		}
		key := appendRowKey(nil, bucket, digest)
		value, err := v.value(key)
		if err != nil {
			return nil, err
		}
		if value != nil {
			r, err := openRow(key, value)
			if err != nil {
				return nil, corrupt(fmt.Errorf("row %x: %w", key, err))
			}
			return r, nil
		}
		_, next := bucketSpan(prefixRow, bucket)
		ok = v.it.SeekGE(next)
	}
	if err := v.it.Error(); err != nil {
		return nil, readError(err)
	}
	return nil, nil
}

// value returns a copy of what is stored under the key, or nil.
func (v view) value(key []byte) ([]byte, error) {
	if !v.it.SeekGE(key) || !bytes.Equal(v.it.Key(), key) {
		if err := v.it.Error(); err != nil {
			return nil, readError(err)
		}
		return nil, nil
	}
	value, err := v.it.ValueAndErr()
	if err != nil {
		return nil, readError(err)
	}
	return slices.Clone(value), nil
}
