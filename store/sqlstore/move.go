package sqlstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// moveRow moves the row of a bucket that is still live into the home bucket, as it is. When it
// cannot be moved now, it can be tried again.
func (s *Store) moveRow(ctx context.Context, from bucketID, digest store.KeyDigest) (moved bool, err error) {
	for n := range tries {
		if err := backoff(ctx, n); err != nil {
			return false, err
		}
		moved, err = s.tryMove(from, digest)
		switch faultOf(err) {
		case faultNone:
			return moved, nil
		case faultRefused, faultGone:
			return false, err
		}
	}
	return false, err
}

// tryMove moves a row in one transaction (6), unless it has gone or expired.
func (s *Store) tryMove(from bucketID, digest store.KeyDigest) (moved bool, err error) {
	ctx, cancel := s.statementContext()
	defer cancel()
	snap, err := s.catalog.current(ctx)
	if err != nil {
		return false, err
	}
	sealed := s.seal.upTo()
	err = s.dialect.runTx(ctx, s.pool, func(tx pgx.Tx) error {
		moved = false
		w := &writing{s: s, ctx: ctx, tx: tx, task: &task{digest: digest, tier: from.tier}, snap: snap, sealed: sealed}
		old, err := w.lock(&row{bucket: from})
		if errors.Is(err, errAgain) {
			return nil // it has been granted again, elsewhere
		}
		if err != nil || old.rec.Expired(timeOf(w.now)) || from == bucketAt(from.tier, w.now) {
			return err
		}
		moved = true
		return w.insert(bucketAt(from.tier, w.now), old, old)
	})
	return moved && err == nil, err
}
