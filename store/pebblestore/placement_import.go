package pebblestore

import (
	"context"
	"slices"

	"github.com/idemd/idemd/store"
)

// ImportRecords implements [store.Placements]. Like maintenance, it stores a few at a time, so
// that nobody else waits for long.
func (s *Store) ImportRecords(ctx context.Context, namespace string, revision int64, records []store.Inspection) error {
	ns := s.known.load().namespaces[namespace]
	if ns == nil {
		return store.NamespaceUnknown(namespace)
	}
	if err := ns.CheckImport(records...); err != nil {
		return err
	}
	for {
		n, bytes := portion(records)
		if err := s.importSome(ctx, namespace, revision, slices.Clone(records[:n]), bytes); err != nil {
			return err
		}
		if records = records[n:]; len(records) == 0 {
			return nil
		}
	}
}

// portion returns how many of the records one operation may store, and about how many bytes
// they have.
func portion(records []store.Inspection) (n, bytes int) {
	for n < min(moveRows, len(records)) && bytes < moveBytes {
		bytes += rowBytes(&row{rec: records[n].Record})
		for i := range records[n].Events {
			bytes += eventBytes(&records[n].Events[i])
		}
		n++
	}
	return n, bytes
}

func eventBytes(e *store.Event) int {
	const fixed = 128
	if e.Outcome == nil {
		return fixed + len(e.Actor) + len(e.Reason)
	}
	return fixed + e.Outcome.Size()
}

func (s *Store) importSome(ctx context.Context, namespace string, revision int64, records []store.Inspection, bytes int) error {
	return s.do(ctx, classSettle, namespace, bytes, func(t *turn) error {
		ns, err := t.moving(namespace, revision, store.MoveSealed)
		if err != nil {
			return err
		}
		delete(t.l.forgetting, namespace) // who forgets has to look everywhere again
		for i := range records {
			if err := t.importRecord(ns.Tier, &records[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *turn) importRecord(tier store.Tier, in *store.Inspection) error {
	digest := in.Record.Key.Digest()
	old, err := t.find(tier, &in.Record.Key, digest)
	if err != nil {
		return err
	}
	if old != nil && old.rec.Fence > in.Record.Fence {
		return nil
	}
	next := &row{rec: in.Record, bucket: t.bucketOfImported(tier, in.Record)}
	if old != nil {
		t.remove(digest, old)
	}
	for i := range in.Events {
		t.addEvent(digest, next, &in.Events[i])
	}
	t.put(digest, nil, next)
	if next.rec.State == store.StateCompleted {
		t.settled = append(t.settled, settledRow{digest: digest, row: next})
	}
	return nil
}

// bucketOfImported is the bucket of the record's grant, as of any row. Where that is in the
// past so far that it is due to be dropped, or in the future by a clock that is ahead of this
// one, it is the current bucket. Maintenance moves on what outlives it in either.
func (t *turn) bucketOfImported(tier store.Tier, rec *store.Record) bucketID {
	granted := bucketOf(tier, rec.GrantedAt)
	if rec.GrantedAt.After(t.now) || !t.now.Before(granted.dropAfter()) {
		return bucketOf(tier, t.now)
	}
	return granted
}
