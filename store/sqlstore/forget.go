package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

const (
	// forgetRows is how many rows one transaction removes at most: each can have an outcome
	// and events of 256 KiB.
	forgetRows = 200
	// forgetPages is how many such transactions there are in one call. Each looks at no more
	// than scanRows.
	forgetPages = 50
)

// ForgetRecords implements [store.Placements]. It goes through the buckets in the order in
// which rows move, so that what maintenance moves meanwhile is met all the same.
func (s *Store) ForgetRecords(ctx context.Context, namespace string, revision int64, keep func(store.Key) bool) (more bool, err error) {
	snap, err := s.reread(ctx)
	if err != nil {
		return false, err
	}
	ns, err := snap.known(namespace)
	if err != nil {
		return false, err
	}
	if err := ns.CheckMove(revision, forgettable...); err != nil {
		return false, err
	}
	at := s.forgetting.reached(namespace, revision)
	for pages := 0; pages < forgetPages; pages++ {
		i := slices.IndexFunc(snap.buckets[ns.Tier], func(id bucketID) bool { return id.start >= at.start })
		if i < 0 {
			s.forgetting.ended(namespace)
			return false, nil
		}
		if at, err = s.forgetFrom(ctx, ns, revision, snap.buckets[ns.Tier][i], at, keep); err != nil {
			return false, err
		}
	}
	s.forgetting.note(namespace, revision, at)
	return true, nil
}

var forgettable = []store.MovePhase{store.MoveSealed, store.MoveFlipped}

// forgetFrom removes rows of a bucket, in one transaction, and returns where to go on.
func (s *Store) forgetFrom(ctx context.Context, ns *store.Namespace, revision int64, id bucketID, at listPlace, keep func(store.Key) bool) (next listPlace, err error) {
	if id.start > at.start {
		at = listPlace{start: id.start, after: []byte{}}
	}
	err = s.again(ctx, ns, func() error {
		return s.moveTx(ns.Name, revision, forgettable, func(ctx context.Context, tx pgx.Tx, _, _ int64) error {
			last, err := s.forgetPage(ctx, tx, id, namespacePrefix(ns.Name), at.after, keep)
			next = listPlace{start: id.start, after: last}
			if last == nil {
				next = listPlace{start: id.end(), after: []byte{}}
			}
			return err
		})
	})
	return next, err
}

// forgetPage looks at the rows of a bucket after a digest, and removes those whose key begins
// with prefix, and is not to be kept. Last is the last row it looked at, nil if it came to the end.
func (s *Store) forgetPage(ctx context.Context, tx pgx.Tx, id bucketID, prefix, after []byte, keep func(store.Key) bool) (last []byte, err error) {
	table := id.table(s.opts.Region)
	err = tx.QueryRow(ctx, fmt.Sprintf("SELECT digest FROM %s WHERE digest > $1 ORDER BY digest LIMIT 1 OFFSET %d", table, scanRows-1), after).Scan(&last)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	upTo := last
	if upTo == nil {
		upTo = lastDigest
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT o.digest, o.key FROM %s AS o WHERE o.digest > $1 AND o.digest <= $2
  AND o.state <> %d AND substring(o.key from 1 for %d) = $3
ORDER BY o.digest LIMIT %d`, table, stateMoved, len(prefix), forgetRows), after, upTo, prefix)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedKey])
	if err != nil {
		return nil, err
	}
	if len(found) == forgetRows {
		last = found[forgetRows-1].Digest
	}
	var forget [][]byte
	for _, row := range found {
		if keep != nil {
			if key, err := store.DecodeKey(row.Key); err == nil && keep(key) {
				continue // in use: it is not even locked
			}
		}
		forget = append(forget, row.Digest)
	}
	if len(forget) == 0 {
		return last, nil
	}
	_, err = tx.Exec(ctx, fmt.Sprintf(`DELETE FROM %s AS r WHERE r.digest IN (
  SELECT o.digest FROM %s AS o WHERE o.digest = ANY($1) AND o.state <> %d ORDER BY o.digest FOR UPDATE)`, table, table, stateMoved), forget)
	return last, err
}

// storedKey is whose a row is.
type storedKey struct{ Digest, Key []byte }

// forgetting is how far this process has got with what it is to forget, by namespace: a call
// goes on where the last one ended. It counts for one revision, at which all that is to be
// forgotten is there from the beginning.
type forgetting struct {
	mu sync.Mutex
	at map[string]forgot
}

type forgot struct {
	revision int64
	next     listPlace
}

func (f *forgetting) reached(namespace string, revision int64) listPlace {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, ok := f.at[namespace]; ok && at.revision == revision {
		return at.next
	}
	return listPlace{after: []byte{}}
}

func (f *forgetting) note(namespace string, revision int64, next listPlace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil {
		f.at = map[string]forgot{}
	}
	f.at[namespace] = forgot{revision, next}
}

func (f *forgetting) ended(namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.at, namespace)
}
