package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// completeTables adds the column unsettled_since to the open buckets that have not got it: a
// release without it made them before an upgrade, or makes them beside this one during it. Both
// databases only note a column without a default; no row is written.
// https://www.cockroachlabs.com/docs/v25.4/alter-table#add-column
//
// It cannot while anybody reads a bucket for long, as pg_dump does. Until it can, nothing is granted
// in that bucket, since not all that may become of a grant could be written there. What was granted
// in it before is renewed, completed, and released without an effect; it is read; and what takes a
// transaction is refused, as are lists of records. In other buckets everything goes on.
//
// Each table is tried once, because everybody waits behind it; it will be tried again.
func (k *keeper) completeTables(ctx context.Context, snap *snapshot) error {
	lacking, err := incompleteTables(ctx, k.pool, snap.tables(k.opts.Region))
	if err != nil || len(lacking) == 0 {
		return err
	}
	return define(ctx, k.pool, bucketTimeout, func(d definer) error {
		var failed []error
		for _, table := range lacking {
			if _, err := d.Exec(ctx, fmt.Sprintf("ALTER TABLE IF EXISTS %s ADD COLUMN IF NOT EXISTS unsettled_since int8", table)); err != nil {
				failed = append(failed, fmt.Errorf("add the column unsettled_since of this release to bucket %s: %w", table, err))
			}
		}
		return errors.Join(failed...)
	})
}

// incomplete says which open buckets have not got the columns of this release.
func (k *keeper) incomplete(ctx context.Context, snap *snapshot) error {
	lacking, err := incompleteTables(ctx, k.pool, snap.tables(k.opts.Region))
	if err != nil || len(lacking) == 0 {
		return err
	}
	return fmt.Errorf("the column unsettled_since of this release could not be added to %s: claims of new keys that belong there are refused until it is; something holds a lock on them (pg_dump?), see pg_locks", strings.Join(lacking, ", "))
}

// incompleteTables are those of the tables that have not got the columns of this release.
func incompleteTables(ctx context.Context, pool *pgxpool.Pool, tables []string) ([]string, error) {
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	rows, err := pool.Query(bounded, `SELECT name FROM unnest($1::text[]) AS x(name)
WHERE to_regclass(x.name) IS NOT NULL AND NOT EXISTS
  (SELECT 1 FROM pg_attribute AS a WHERE a.attrelid = to_regclass(x.name)::oid AND a.attname = 'unsettled_since')
ORDER BY name`, tables)
	if err != nil {
		return nil, unavailable(err)
	}
	lacking, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, unavailable(err)
	}
	return lacking, nil
}
