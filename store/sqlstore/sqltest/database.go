package sqltest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store/sqlstore"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
	"github.com/idemd/idemd/store/storetest"
)

// database is a migrated database, or a schema, which is to a store what a database is and
// much cheaper. It goes with the server.
type database struct {
	conn   *pgx.Conn // for the test
	stores string    // the stores' connection string, which may lead through a proxy
	region string
}

func straight(_ testing.TB, dsn string) string { return dsn }

// scripted are the options of stores whose database's clock is a row.
func scripted(region string) sqlstore.Options {
	return sqlstore.Options{
		Region: region, MaintainEvery: -1,
		Clock: sqlstore.SQLClock{Now: scriptedClock, Running: scriptedClock},
	}
}

// migrate makes the clock and the tables in an empty database.
func migrate(t testing.TB, db database) {
	t.Helper()
	pgtest.Execute(t, db.conn, "CREATE TABLE test_clock (at timestamptz NOT NULL)")
	pgtest.Execute(t, db.conn, "INSERT INTO test_clock VALUES ($1)", storetest.Start)
	m, err := sqlstore.NewMigrator(t.Context(), db.stores, scripted(db.region))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

var schemas atomic.Int64

// emptySchema makes a schema and returns its name and its connection string.
func emptySchema(t testing.TB, conn *pgx.Conn) (name, dsn string) {
	t.Helper()
	name = fmt.Sprintf("scripted_%d", schemas.Add(1))
	pgtest.Execute(t, conn, "CREATE SCHEMA "+name)
	return name, pgtest.Shared(t).DSN("postgres") + "&search_path=" + name
}

func newSchema(t testing.TB, region string) database {
	t.Helper()
	return newSchemaThrough(t, region, straight)
}

// newSchemaThrough makes a schema as a migration leaves it behind. Only the first of a region
// is migrated, as that takes long; the others are made like that one.
func newSchemaThrough(t testing.TB, region string, way func(testing.TB, string) string) database {
	t.Helper()
	conn := pgtest.Dial(t, pgtest.Shared(t).DSN("postgres"))
	text := copyOf(t, conn, region, way)
	name, dsn := emptySchema(t, conn)
	pgtest.Execute(t, conn, strings.ReplaceAll(text, "copied_to", name))
	pgtest.Execute(t, conn, "SET search_path = "+name)
	return database{conn: conn, stores: way(t, dsn), region: region}
}

var copies = struct {
	sync.Mutex
	texts map[string]string // by region
}{texts: map[string]string{}}

// copyOf returns statements that make schema copied_to what a migration makes.
func copyOf(t testing.TB, conn *pgx.Conn, region string, way func(testing.TB, string) string) string {
	t.Helper()
	copies.Lock()
	defer copies.Unlock()
	if text := copies.texts[region]; text != "" {
		return text
	}
	name, dsn := emptySchema(t, conn)
	migrate(t, database{conn: pgtest.Dial(t, dsn), stores: way(t, dsn), region: region})
	rows, err := conn.Query(t.Context(), `SELECT format('CREATE TABLE copied_to.%2$I (LIKE %1$I.%2$I INCLUDING ALL)%3$s; INSERT INTO copied_to.%2$I SELECT * FROM %1$I.%2$I',
  $1::text, relname, ' WITH (' || array_to_string(reloptions, ', ') || ')')
FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'`, name)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	copies.texts[region] = strings.Join(tables, ";\n")
	return copies.texts[region]
}
