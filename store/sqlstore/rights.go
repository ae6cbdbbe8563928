package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// ErrRights is the refusal to work as a user who may not do what operations will need.
var ErrRights = errors.New("the user lacks rights")

// baseTables are those that are not buckets and are written to.
var baseTables = []string{"idem_buckets", "idem_clock", "idem_namespaces", "idem_members"}

// checkRights refuses a user who can read and not write: it would start, and refuse every
// claim. Only a table's owner, or the schema's, can drop it, and buckets are dropped all the
// time.
func (s *Store) checkRights(ctx context.Context) error {
	if _, ok := s.dialect.(*postgres); !ok {
		return nil // CockroachDB: its owners and rights are not PostgreSQL's
	}
	var user, schema string
	var create bool
	err := s.pool.QueryRow(ctx, `SELECT quote_ident(current_user), coalesce(quote_ident(current_schema()), ''),
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)`).Scan(&user, &schema, &create)
	if err != nil {
		return fmt.Errorf("ask for the user's rights: %w", err)
	}
	denied, foreign, err := s.deniedTables(ctx)
	if err != nil {
		return fmt.Errorf("ask for the user's rights: %w", err)
	}
	switch {
	case schema == "":
		return fmt.Errorf("%w: %s may use no schema: run GRANT USAGE, CREATE ON SCHEMA public TO %s", ErrRights, user, user)
	case !create:
		return fmt.Errorf("%w: %s may make no tables: run GRANT USAGE, CREATE ON SCHEMA %s TO %s", ErrRights, user, schema, user)
	case denied != "":
		return fmt.Errorf("%w: %s may not write to %s: serve as the user who ran migrate up, or run GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %s TO %s",
			ErrRights, user, denied, schema, user)
	case foreign != "":
		return fmt.Errorf("%w: %s may not drop %s: serve as its owner, who ran migrate up, or run ALTER TABLE %s OWNER TO %s for it and every other bucket",
			ErrRights, user, foreign, foreign, user)
	}
	return nil
}

// deniedTables returns a table that the user may not write to, and a bucket that it may not
// drop, if there are such.
func (s *Store) deniedTables(ctx context.Context) (denied, foreign string, err error) {
	names := slices.Concat(baseTables, s.catalog.copy.Load().tables(s.opts.Region))
	err = s.pool.QueryRow(ctx, `SELECT
  coalesce(min(c.relname::text) FILTER (WHERE NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))), ''),
  coalesce(min(c.relname::text) FILTER (WHERE c.relname <> ALL($2::text[])
    AND NOT pg_has_role(c.relowner, 'USAGE') AND NOT pg_has_role(n.nspowner, 'USAGE')), '')
FROM unnest($1::text[]) AS x(name) JOIN pg_class AS c ON c.oid = to_regclass(x.name) JOIN pg_namespace AS n ON n.oid = c.relnamespace`,
		names, baseTables).Scan(&denied, &foreign)
	return denied, foreign, err
}

// tables are the tables of the open buckets.
func (s *snapshot) tables(region string) []string {
	var names []string
	for _, tier := range store.Tiers {
		for _, id := range s.buckets[tier] {
			names = append(names, id.table(region))
		}
	}
	return names
}

// checkTables says which open buckets have no table any more. It is not made again by itself:
// what was in it is forgotten, and would be granted once more.
func (s *Store) checkTables(ctx context.Context, snap *snapshot) error {
	rows, err := s.pool.Query(ctx, "SELECT name FROM unnest($1::text[]) AS x(name) WHERE to_regclass(name) IS NULL ORDER BY name", snap.tables(s.opts.Region))
	if err != nil {
		return unavailable(err)
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return unavailable(err)
	}
	if len(gone) == 0 {
		return nil
	}
	return fmt.Errorf("the table of an open bucket is gone: %s: its keys are forgotten, and operations that must look into it are refused (deploy/DATABASE.md, When this happens)", strings.Join(gone, ", "))
}
