package sqlstore

import (
	"context"
	"errors"
)

// RetentionLag is how long after a change of a namespace's retention the old one still counts:
// until no process can act on a copy of the catalog from before the change.
const RetentionLag = copyLag

// CatchUp reads what other processes have made and how far the database's clock is, and makes
// the buckets that are missing then: what this process does by itself every few seconds. It
// is for tests of several processes, whose clock jumps.
func (s *Store) CatchUp(ctx context.Context) error {
	return errors.Join(s.catalog.refresh(ctx), s.provide(ctx))
}
