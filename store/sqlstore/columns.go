package sqlstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// completeTables adds the column unsettled_since to the open buckets that have not got it: a
// release without it made them before an upgrade, or makes them beside this one during it. Both
// databases only note a column without a default; no row is written.
// https://www.cockroachlabs.com/docs/v25.4/alter-table#add-column
func (k *keeper) completeTables(ctx context.Context, snap *snapshot) error {
	lacking, err := k.incompleteTables(ctx, snap)
	if err != nil || len(lacking) == 0 {
		return err
	}
	return define(ctx, k.pool, bucketTimeout, func(d definer) error {
		for _, table := range lacking {
			if err := repeatable(ctx, d, fmt.Sprintf("ALTER TABLE IF EXISTS %s ADD COLUMN IF NOT EXISTS unsettled_since int8", table)); err != nil {
				return fmt.Errorf("add the columns of this release to bucket %s: %w", table, err)
			}
		}
		return nil
	})
}

func (k *keeper) incompleteTables(ctx context.Context, snap *snapshot) ([]string, error) {
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	rows, err := k.pool.Query(bounded, `SELECT name FROM unnest($1::text[]) AS x(name)
WHERE to_regclass(x.name) IS NOT NULL AND NOT EXISTS
  (SELECT 1 FROM pg_attribute AS a WHERE a.attrelid = to_regclass(x.name)::oid AND a.attname = 'unsettled_since')
ORDER BY name`, snap.tables(k.opts.Region))
	if err != nil {
		return nil, unavailable(err)
	}
	lacking, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, unavailable(err)
	}
	return lacking, nil
}
