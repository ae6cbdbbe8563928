package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/idemd/idemd/client/guard"
)

// The shop's guards. The three inboxes share a table, in which their names tell them apart.
var (
	serviceInbox  = guard.Inbox{Name: "service"}
	workerInbox   = guard.Inbox{Name: "worker"}
	webhookInbox  = guard.Inbox{Name: "webhook"}
	paidOnce      = guard.Once{Name: "payment"}
	paymentStates = guard.Transition{Table: "payments", ID: "id", State: "state"}
)

// database is the shop's. Its one connection begins one transaction at a time.
type database struct {
	db      *sql.DB
	dialect guard.Dialect
}

// openDatabase opens PostgreSQL, or SQLite in a file of dir if there is no dsn, and makes the tables.
func openDatabase(ctx context.Context, dsn, dir string) (*database, error) {
	driver, dialect := "pgx", guard.PostgreSQL
	if dsn == "" {
		driver, dialect = "sqlite", guard.SQLite
		dsn = "file:" + filepath.Join(dir, "shop.db") + "?_txlock=immediate&_pragma=synchronous(off)&_pragma=journal_mode(memory)" // nothing here outlives the process
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	d := &database{db, dialect}
	if err := d.makeTables(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the shop's database: %w", err), db.Close())
	}
	return d, nil
}

// makeTables makes those of the shop and of its guards. In PostgreSQL they are temporary: the first schema
// in which a name is looked up is that of the connection, and is gone with it.
func (d *database) makeTables(ctx context.Context) error {
	statements := []string{
		"CREATE TABLE payments (id TEXT PRIMARY KEY, order_id TEXT NOT NULL, state TEXT NOT NULL)",
		"CREATE TABLE outbox (id TEXT PRIMARY KEY, payment TEXT NOT NULL, order_id TEXT NOT NULL, sent INTEGER NOT NULL)",
	}
	if d.dialect == guard.PostgreSQL {
		statements = append([]string{"SET search_path TO pg_temp"}, statements...)
	}
	for _, ddl := range []func(guard.Dialect) ([]string, error){serviceInbox.DDL, paidOnce.DDL} {
		more, err := ddl(d.dialect)
		if err != nil {
			return err
		}
		statements = append(statements, more...)
	}
	for _, statement := range statements {
		if _, err := d.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (d *database) close() error { return d.db.Close() }

// inTx commits what f does, unless f fails.
func (d *database) inTx(ctx context.Context, f func(guard.Tx) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(d.dialect.Tx(tx)); err != nil {
		return err
	}
	return tx.Commit()
}

func exec(ctx context.Context, tx guard.Tx, statement string, args ...any) error {
	_, err := tx.Exec(ctx, inDialect(tx, statement), args...)
	return err
}

func query(ctx context.Context, tx guard.Tx, statement string, args []any, dest ...any) (found bool, err error) {
	return tx.QueryRow(ctx, inDialect(tx, statement), args, dest...)
}

func inDialect(tx guard.Tx, statement string) string {
	if tx.Dialect() == guard.SQLite {
		return strings.ReplaceAll(statement, "$", "?")
	}
	return statement
}
