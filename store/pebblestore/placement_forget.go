package pebblestore

import (
	"bytes"
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// forgetting is how far a namespace has been looked through for records to forget. Rows are in
// the order of their buckets and digests, so that those of a namespace are everywhere among
// the others' of its tier; no call could look through all of them. What maintenance moves
// forward meanwhile comes up again later.
type forgetting struct {
	revision int64
	from     []byte // a row's key; before it there is none
}

// ForgetRecords implements [store.Placements]. A damaged row does not tell whose it is, and
// stays: its key is refused, as before.
func (s *Store) ForgetRecords(ctx context.Context, namespace string, revision int64, keep func(store.Key) bool) (bool, error) {
	f, tier, from, err := s.resumeForgetting(ctx, namespace, revision)
	if err != nil {
		return false, err
	}
	found, err := s.findIn(ctx, namespace, tier, from, keep)
	if err != nil {
		return false, err
	}
	for rows := found.digests; len(rows) > 0; {
		n, err := s.forgetSome(ctx, namespace, revision, rows)
		if err != nil {
			return false, err
		}
		rows = rows[n:]
	}
	return s.leaveForgetting(ctx, namespace, f, found.next)
}

// resumeForgetting returns where to go on.
func (s *Store) resumeForgetting(ctx context.Context, namespace string, revision int64) (*forgetting, store.Tier, []byte, error) {
	var (
		f    *forgetting
		tier store.Tier
		from []byte
	)
	err := s.do(ctx, classSettle, namespace, 0, func(t *turn) error {
		ns, err := t.moving(namespace, revision, store.MoveSealed, store.MoveFlipped)
		if err != nil {
			return err
		}
		f = t.l.forgetting[namespace]
		if f == nil || f.revision != revision {
			first, _ := tierSpan(ns.Tier)
			f = &forgetting{revision: revision, from: first}
			if t.l.forgetting == nil {
				t.l.forgetting = map[string]*forgetting{}
			}
			t.l.forgetting[namespace] = f
		}
		tier, from = ns.Tier, f.from
		return nil
	})
	if err != nil {
		return nil, 0, nil, err
	}
	return f, tier, from, nil
}

// leaveForgetting remembers where to go on, nil being the end, and reports whether there may be
// more: also if others have been at it, or have imported records, since it was resumed.
func (s *Store) leaveForgetting(ctx context.Context, namespace string, f *forgetting, next []byte) (bool, error) {
	var more bool
	err := s.do(ctx, classSettle, namespace, 0, func(t *turn) error {
		switch {
		case t.l.forgetting[namespace] != f:
			more = true
		case next == nil:
			delete(t.l.forgetting, namespace)
		default:
			f.from, more = next, true
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return more, nil
}

// found is what a scan has found.
type found struct {
	digests []store.KeyDigest
	next    []byte // the key of the row to go on with; nil at the end
}

// findIn reads a bounded number of rows, in the namespace's turn, and finds those of its keys among them that are not to
// be kept.
func (s *Store) findIn(ctx context.Context, namespace string, tier store.Tier, from []byte, keep func(store.Key) bool) (found, error) {
	leave, err := s.listing.enter(ctx, namespace)
	if err != nil {
		return found{}, err
	}
	defer leave()
	return past(s, func() (found, error) {
		return s.scanNamespace(ctx, tier, from, func(key *store.Key) bool { return key.Namespace == namespace && (keep == nil || !keep(*key)) })
	})
}

// scanNamespace reads a bounded number of rows and finds those that are wanted among them.
func (s *Store) scanNamespace(ctx context.Context, tier store.Tier, from []byte, wanted func(*store.Key) bool) (found, error) {
	_, to := tierSpan(tier)
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return found{}, readError(err)
	}
	defer it.Close()
	var rows found
	budget := scanBudget{rows: scanRows, bytes: scanBytes}
	for ok := it.First(); ok; ok = it.Next() {
		if err := ctx.Err(); err != nil {
			return found{}, err
		}
		if !budget.spend(len(it.Value())) {
			rows.next = bytes.Clone(it.Key())
			return rows, nil
		}
		if key, digest, err := keyOf(it.Key(), it.Value()); err != nil {
			s.damaged(err)
		} else if wanted(&key) {
			rows.digests = append(rows.digests, digest)
		}
	}
	if err := it.Error(); err != nil {
		s.damaged(err)
		return found{}, readError(err)
	}
	return rows, nil
}

// keyOf returns the key of a stored row, and its digest.
func keyOf(row, value []byte) (store.Key, store.KeyDigest, error) {
	_, digest, ok := splitRowKey(row)
	if !ok {
		return store.Key{}, digest, errDamagedValue
	}
	payload, err := unseal(row, value)
	if err != nil {
		return store.Key{}, digest, err
	}
	key, err := peekKey(payload)
	return key, digest, err
}

// forgetSome removes the first of the rows, as many as one operation may, and returns how many
// it has seen to.
func (s *Store) forgetSome(ctx context.Context, namespace string, revision int64, digests []store.KeyDigest) (int, error) {
	var seen int
	err := s.do(ctx, classSettle, namespace, 0, func(t *turn) error {
		ns, err := t.moving(namespace, revision, store.MoveSealed, store.MoveFlipped)
		if err != nil {
			return err
		}
		for read := 0; seen < min(moveRows, len(digests)) && read < moveBytes; seen++ {
			r, err := t.current(ns.Tier, digests[seen])
			if err != nil && !errors.Is(err, store.ErrRecordCorrupt) {
				return err
			}
			if r != nil {
				t.remove(digests[seen], r)
				read += rowBytes(r)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return seen, nil
}
