package sqlstore

import (
	"context"
	"errors"
)

// CatchUp reads what other processes have made and how far the database's clock is, and makes
// the buckets that are missing then: what this process does by itself every few seconds. It
// is for tests of several processes, whose clock jumps.
func (s *Store) CatchUp(ctx context.Context) error {
	return errors.Join(s.catalog.refresh(ctx), s.provide(ctx))
}
