package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"

	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/client/guard/guardpgx"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// What the suite runs over: a database and a way to reach it.
const (
	overSQL    = "PostgreSQL by database/sql"
	overPGX    = "PostgreSQL by pgx"
	overSQLite = "SQLite"
	overCRDB   = "CockroachDB by pgx"
)

var (
	inbox  = guard.Inbox{Name: "ledger"}
	once   = guard.Once{Name: "capture"}
	orders = guard.Transition{Table: "orders", ID: "id", State: "state"}
	seq    = guard.Sequence{Name: "balance"}
	fence  = guard.Fence{Name: "ledger"}
)

type database struct {
	kind, dsn string
	dialect   guard.Dialect
	levels    []sql.IsolationLevel
	begin     func(ctx context.Context, level sql.IsolationLevel) (transaction, error)
}

type transaction struct {
	guard.Tx
	commit, rollback func() error
}

// overAll runs a test over every database, each with empty tables.
func overAll(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, kind := range []string{overSQL, overPGX, overSQLite, overCRDB} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, kind))
		})
	}
}

func newDatabase(t *testing.T, kind string) *database {
	t.Helper()
	var dsn string
	switch kind {
	case overSQLite:
		dsn = "file:" + filepath.Join(t.TempDir(), "test.db")
	case overCRDB:
		dsn = pgtest.Cockroach(t)
	default:
		dsn = pgtest.Shared(t).NewDatabase(t)
	}
	d, closeIt, err := open(kind, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeIt)
	for _, statement := range schema(t, d.dialect) {
		d.do(t, func(tx guard.Tx) error { return run(tx, statement) })
	}
	return d
}

func schema(t *testing.T, dialect guard.Dialect) []string {
	t.Helper()
	all := []string{
		"CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)",
		"CREATE TABLE effects (id TEXT NOT NULL, value BIGINT NOT NULL)",
	}
	statements := ddl(t, dialect)
	return append(all, append(statements, statements...)...) // they can be repeated
}

// ddl is that of all guards.
func ddl(t *testing.T, dialect guard.Dialect) (all []string) {
	t.Helper()
	for _, ddl := range []func(guard.Dialect) ([]string, error){inbox.DDL, once.DDL, seq.DDL, fence.DDL} {
		statements, err := ddl(dialect)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, statements...)
	}
	return all
}

func open(kind, dsn string) (d *database, closeIt func(), err error) {
	d = &database{kind: kind, dsn: dsn, levels: []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}}
	switch kind {
	case overSQLite:
		d.dialect, d.levels = guard.SQLite, []sql.IsolationLevel{sql.LevelDefault}
		closeIt, err = d.openSQL("sqlite", dsn+"?_txlock=immediate&_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)")
	case overSQL:
		closeIt, err = d.openSQL("pgx", dsn)
	default:
		closeIt, err = d.openPGX(dsn)
	}
	return d, closeIt, err
}

func (d *database) openSQL(driver, dsn string) (func(), error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(20)
	d.begin = func(ctx context.Context, level sql.IsolationLevel) (transaction, error) {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
		if err != nil {
			return transaction{}, err
		}
		return transaction{d.dialect.Tx(tx), tx.Commit, tx.Rollback}, nil
	}
	return func() { _ = db.Close() }, nil
}

func (d *database) openPGX(dsn string) (func(), error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	d.begin = func(ctx context.Context, level sql.IsolationLevel) (transaction, error) {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(level.String()))})
		if err != nil {
			return transaction{}, err
		}
		return transaction{guardpgx.Tx(tx),
			func() error { return tx.Commit(ctx) },
			func() error { return tx.Rollback(context.WithoutCancel(ctx)) }}, nil
	}
	return pool.Close, nil
}

// inTx runs f in a transaction and commits, all again where the database asks for that.
func (d *database) inTx(level sql.IsolationLevel, f func(guard.Tx) error) error {
	for {
		err := d.tryTx(level, f)
		if !runAgain(err) {
			return err
		}
	}
}

func (d *database) tryTx(level sql.IsolationLevel, f func(guard.Tx) error) error {
	tx, err := d.begin(context.Background(), level)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.rollback())
	}
	return tx.commit()
}

func runAgain(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "40001" || pg.Code == "40P01"
	}
	var lite *sqlite.Error
	const busy = 5 // the low byte of SQLITE_BUSY and what is more exact
	return errors.Is(err, guard.ErrChanged) || errors.As(err, &lite) && lite.Code()&0xff == busy
}

// do is inTx at the database's own level. It must succeed.
func (d *database) do(t testing.TB, f func(guard.Tx) error) {
	t.Helper()
	if err := d.inTx(d.levels[0], f); err != nil {
		t.Fatal(err)
	}
}

var errRollBack = errors.New("roll back")

// undone runs f in a transaction that is rolled back.
func (d *database) undone(t testing.TB, f func(guard.Tx) error) {
	t.Helper()
	err := d.inTx(d.levels[0], func(tx guard.Tx) error { return errors.Join(f(tx), errRollBack) })
	if fmt.Sprint(err) != errRollBack.Error() {
		t.Fatal(err)
	}
}

func run(tx guard.Tx, statement string, args ...any) error {
	_, err := tx.Exec(context.Background(), forDialect(tx, statement), args...)
	return err
}

func forDialect(tx guard.Tx, statement string) string {
	if tx.Dialect() == guard.SQLite {
		return strings.ReplaceAll(statement, "$", "?")
	}
	return statement
}

// effect is what happens once or, unguarded, more often.
func effect(tx guard.Tx, id string, value int64) error {
	return run(tx, "INSERT INTO effects (id, value) VALUES ($1, $2)", id, value)
}

func (d *database) effects(t testing.TB, id string) (n int) {
	t.Helper()
	d.do(t, func(tx guard.Tx) error {
		_, err := tx.QueryRow(t.Context(), forDialect(tx, "SELECT count(*) FROM effects WHERE id = $1"), []any{id}, &n)
		return err
	})
	return n
}

// clear empties all tables.
func (d *database) clear(t testing.TB) {
	t.Helper()
	d.do(t, func(tx guard.Tx) error {
		for _, table := range []string{"idemd_inbox", "idemd_once", "idemd_sequence", "idemd_fence", "orders", "effects"} {
			if err := run(tx, "DELETE FROM "+table); err != nil {
				return err
			}
		}
		return nil
	})
}

func wantEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantIs(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got error %v, want %v", what, got, want)
	}
}
