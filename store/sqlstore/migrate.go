package sqlstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
)

// The schema of the tables beside the buckets, in numbered migrations. Each names in its
// first line the oldest version whose code can still work with what it leaves behind, so that
// replicas are upgraded one by one:
//
//  1. `idemd migrate up` of the new release, while replicas of the old one run: a migration
//     that they can run with says "compatible: <their version>";
//  2. the replicas, in any order;
//  3. what the old release needed goes in a later release, in a migration that is compatible
//     with nothing older than the code that does without it.
//
// A replica refuses to start on an older schema than its own, and stops answering when a
// migration comes that it is not compatible with. The tables of buckets are made by the
// replicas, in an upgrade also by those of the old release. So a new column in them is one that
// the old release's statements can leave out, and those of the new one add it: see columns.go.

//go:embed migrations/*.sql
var migrationFiles embed.FS

// schemaVersion is the version that this code is made for: the newest migration's.
var schemaVersion = len(migrations)

var migrations = mustReadMigrations()

// migration is one step of the schema.
type migration struct {
	version, compatible int
	name                string
	statements          []string
}

var (
	// ErrSchemaOlder says that the database has not been prepared for this release.
	ErrSchemaOlder = errors.New("the database's schema is older than this release needs")
	// ErrSchemaNewer says that the database has been prepared for a release that this one cannot share
	// it with.
	ErrSchemaNewer = errors.New("the database's schema is newer than this release can work with")
)

func mustReadMigrations() []migration {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		panic(err)
	}
	list := make([]migration, len(names))
	for i, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		if list[i], err = parseMigration(strings.TrimPrefix(name, "migrations/"), string(text)); err != nil || list[i].version != i+1 {
			panic(fmt.Sprintf("migration %s is not number %d: %v", name, i+1, err))
		}
	}
	return list
}

func parseMigration(name, text string) (migration, error) {
	m := migration{name: strings.TrimSuffix(name, ".sql")}
	first, rest, _ := strings.Cut(text, "\n")
	number, _, _ := strings.Cut(name, "_")
	var err error
	if m.version, err = strconv.Atoi(number); err != nil {
		return m, err
	}
	if m.compatible, err = strconv.Atoi(strings.TrimPrefix(first, "-- compatible: ")); err != nil {
		return m, err
	}
	for _, statement := range strings.Split(rest, ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			m.statements = append(m.statements, statement)
		}
	}
	return m, nil
}

// all are the migration's statements and the one that records it.
func (m migration) all() []string {
	return append(m.statements[:len(m.statements):len(m.statements)], fmt.Sprintf(
		"INSERT INTO idem_schema (version, compatible) VALUES (%d, %d) ON CONFLICT (version) DO NOTHING", m.version, m.compatible))
}

const createSchemaTable = `-- The migrations that were made, and with which version's code each can still be used.
CREATE TABLE IF NOT EXISTS idem_schema (
  version int4 PRIMARY KEY,
  compatible int4 NOT NULL
)`

// compatible refuses a schema that needs code of a newer version than this.
func compatible(oldest int) error {
	if oldest > schemaVersion {
		return fmt.Errorf("%w: it needs version %d, this is %d: upgrade this replica", ErrSchemaNewer, oldest, schemaVersion)
	}
	return nil
}

// rowQuerier is a pool, a connection or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readSchema returns the database's version, 0 if nothing was ever made, and the oldest that
// it is compatible with.
func readSchema(ctx context.Context, q rowQuerier) (version, oldest int, err error) {
	err = q.QueryRow(ctx, "SELECT coalesce(max(version), 0), coalesce(max(compatible), 0) FROM idem_schema").Scan(&version, &oldest)
	if faultOf(err) == faultGone {
		return 0, 0, nil
	}
	return version, oldest, err
}

// checkSchema refuses a schema that this code cannot work with.
func checkSchema(ctx context.Context, q rowQuerier) error {
	version, oldest, err := readSchema(ctx, q)
	if err != nil {
		return fmt.Errorf("read the version of the database's schema: %w", err)
	}
	if version < schemaVersion {
		return fmt.Errorf("%w: it has version %d, this is %d: run `idemd migrate up`", ErrSchemaOlder, version, schemaVersion)
	}
	return compatible(oldest)
}

// SchemaStatus says how far a database's schema is.
type SchemaStatus struct {
	// Version is the database's, 0 if nothing was made yet; Release is this code's.
	Version, Release int
	// Pending are the names of the migrations that Up would make.
	Pending []string
	// Incomplete are the tables of the region's buckets to which Up would add columns.
	Incomplete []string
}

// Migrator prepares a database. Make it with [NewMigrator].
type Migrator struct {
	opts    Options
	pool    *pgxpool.Pool
	dialect dialect
}

// NewMigrator connects to the database that dsn names. Of the options Region says which
// region's buckets Up makes, and Status looks at.
func NewMigrator(ctx context.Context, dsn string, opts Options) (*Migrator, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	pool, dialect, err := connect(ctx, dsn, opts)
	if err != nil {
		return nil, err
	}
	return &Migrator{opts: opts, pool: pool, dialect: dialect}, nil
}

// Close closes the connections.
func (m *Migrator) Close() { m.pool.Close() }

// Status says how far the schema is.
func (m *Migrator) Status(ctx context.Context) (SchemaStatus, error) {
	version, _, err := readSchema(ctx, m.pool)
	if err != nil {
		return SchemaStatus{}, err
	}
	status := SchemaStatus{Version: version, Release: schemaVersion}
	for _, step := range migrations[min(version, len(migrations)):] {
		status.Pending = append(status.Pending, step.name)
	}
	if version == 0 {
		return status, nil
	}
	tables, err := m.buckets(ctx)
	if err != nil {
		return SchemaStatus{}, err
	}
	status.Incomplete, err = incompleteTables(ctx, m.pool, tables)
	return status, err
}

// buckets are the tables of the region's open buckets.
func (m *Migrator) buckets(ctx context.Context) ([]string, error) {
	rows, err := m.pool.Query(ctx, "SELECT tier::int8, start_us FROM idem_buckets WHERE region = $1 AND state = $2::int8", m.opts.Region, bucketOpen)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var tier, start int64
		err := row.Scan(&tier, &start)
		return bucketID{store.Tier(tier), start}.table(m.opts.Region), err
	})
}

// Up makes the migrations that are pending, then namespace "default" and the first buckets of
// its region if they do not exist. It returns the names of the migrations it made. Several
// may run at once.
func (m *Migrator) Up(ctx context.Context) (made []string, err error) {
	err = define(ctx, m.pool, migrationTimeout, func(d definer) error {
		if m.dialect.transactionalDDL() {
			made, err = upInTransaction(ctx, d)
		} else {
			made, err = upByStatement(ctx, repeating{d})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return made, m.begin(ctx)
}

// migrationLock is the number of the advisory lock that a migration holds: "idemd".
const migrationLock = 0x6964656d64

// upInTransaction makes all that is pending, or nothing.
func upInTransaction(ctx context.Context, d definer) (made []string, err error) {
	for n := 0; ; n++ {
		made, err = tryUp(ctx, d)
		if faultOf(err) != faultRetry {
			return made, err
		}
		// Another migrates, or a table is in use.
		if ended := backoff(ctx, n+2); ended != nil {
			return nil, errors.Join(err, ended)
		}
	}
}

func tryUp(ctx context.Context, d definer) (made []string, err error) {
	bounded, cancel := context.WithTimeout(ctx, d.longest+answerTime)
	defer cancel()
	// Read committed: what is read must be as of when the lock was had.
	err = pgx.BeginTxFunc(bounded, d.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(bounded, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		made, err = upByStatement(bounded, tx)
		return err
	})
	return made, err
}

type executor interface {
	rowQuerier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// repeating runs each statement again that another session's was in the way of.
type repeating struct{ definer }

func (r repeating) Exec(ctx context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, repeatable(ctx, r.definer, sql)
}

// upByStatement makes what is pending, one statement after the other. Each can be repeated,
// so that what was interrupted, or goes on elsewhere at the same time, does no harm.
func upByStatement(ctx context.Context, db executor) (made []string, err error) {
	if _, err := db.Exec(ctx, createSchemaTable); err != nil {
		return nil, err
	}
	version, oldest, err := readSchema(ctx, db)
	if err != nil {
		return nil, err
	}
	if err := compatible(oldest); err != nil {
		return nil, err
	}
	for _, step := range migrations[min(version, len(migrations)):] {
		for _, statement := range step.all() {
			if _, err := db.Exec(ctx, statement); err != nil {
				return nil, fmt.Errorf("migration %s: %w", step.name, err)
			}
		}
		made = append(made, step.name)
	}
	return made, nil
}

// begin makes what every database has.
func (m *Migrator) begin(ctx context.Context) error {
	clock := newDBClock(m.opts)
	t := newTexts(m.opts)
	keeper := newKeeper(m.opts, m.pool, m.dialect, clock, newCatalog(m.pool, t, clock, m.opts.Logger))
	_, err := keeper.createNamespace(ctx, store.Namespace{Name: store.DefaultNamespace})
	if errors.Is(err, store.ErrNamespaceExists) {
		err = nil
	}
	return errors.Join(err, keeper.createAhead(ctx))
}

// PrintMigrations writes the statements of all migrations, and how a bucket of each region is
// made, for people who want to see them first. Databases are called "postgres" and
// "cockroach".
func PrintMigrations(w io.Writer, database string, regions []string) error {
	var d dialect
	switch database {
	case "postgres":
		d = &postgres{}
	case "cockroach":
		d = &cockroach{regions: regions}
	default:
		return fmt.Errorf("database %q: it must be postgres or cockroach", database)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s;\n\n", createSchemaTable)
	for _, step := range migrations {
		fmt.Fprintf(&b, "-- Migration %s.\n", step.name)
		for _, statement := range step.all() {
			fmt.Fprintf(&b, "%s;\n\n", statement)
		}
	}
	for _, region := range regions {
		fmt.Fprintf(&b, "-- The servers of region %s make a table for each bucket, such as this one.\n", region)
		for _, statement := range d.createBucket(bucketID{tier: store.TierDay}, region) {
			fmt.Fprintf(&b, "%s;\n\n", statement)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
