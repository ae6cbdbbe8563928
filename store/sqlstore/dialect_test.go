package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// A server whose own settings would lose what was answered, or let statements run for ever,
// does not get its way with our sessions.
func TestPostgresSession(t *testing.T) {
	t.Parallel()
	s := func() *Store { r := newRig(t); r.migrate(); return r.replica() }()
	for name, want := range map[string]string{
		"synchronous_commit": "on", "statement_timeout": "2s", "lock_timeout": "100ms",
		"idle_in_transaction_session_timeout": "2s", "TimeZone": "UTC", "jit": "off", "plan_cache_mode": "force_generic_plan",
		"enable_seqscan": "off", "application_name": "idemd",
	} {
		var got string
		if err := s.pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s: want %s, got %s (%v)", name, want, got, err)
		}
	}
}

func TestPostgresRefused(t *testing.T) {
	t.Parallel()
	for text, facts := range map[string]postgresFacts{
		"idemd needs 15 or newer": {Version: 14},
		"is a standby":            {Version: 15, InRecovery: true, ReadOnly: true},
		"is read-only":            {Version: 18, ReadOnly: true},
	} {
		if err := facts.check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", facts, err)
		}
	}
	for given, want := range map[string]string{"off": "on", "local": "local", "on": "on", "remote_apply": "remote_apply"} {
		if got := (postgresFacts{SynchronousCommit: given}).commit(); got != want {
			t.Errorf("synchronous_commit %s: want %s, got %s", given, want, got)
		}
	}
}

func TestReadOnlyDatabaseRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	name := read[string](r, "SELECT current_database()")
	r.exec("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
	opts, err := r.opts.withDefaults()
	r.must(err)
	if _, _, err := connect(t.Context(), r.dsn, opts); err == nil || !strings.Contains(err.Error(), "is read-only") {
		t.Fatal(err)
	}
}

// The isolation that the connection string asks for is left alone.
func TestIsolationIsTheDSNs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dsn += "&default_transaction_isolation=serializable"
	r.migrate()
	err := r.replica().dialect.runTx(t.Context(), r.replica().pool, func(tx pgx.Tx) error {
		var level string
		if err := tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil {
			return err
		}
		wantEqual(t, "isolation", level, "serializable")
		return nil
	})
	r.must(err)
}

// What only fails at COMMIT is an error, and nothing of it is there.
func TestTransactionThatFailsAtCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.exec("CREATE TABLE late (id int4, CONSTRAINT once UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)")
	err := s.dialect.runTx(t.Context(), s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO late VALUES (1), (1)")
		return err
	})
	if err == nil {
		t.Fatal("a COMMIT that failed was taken for done")
	}
	wantEqual(t, "rows", read[int](r, "SELECT count(*) FROM late"), 0)
}

// A transaction that lost against another is run again from the start, with a snapshot of
// its own.
func TestTransactionIsRunAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dsn += "&default_transaction_isolation=serializable"
	r.migrate()
	s := r.replica()
	r.exec("CREATE TABLE counter (n int4)")
	r.exec("INSERT INTO counter VALUES (0)")
	runs := 0
	err := s.dialect.runTx(t.Context(), s.pool, func(tx pgx.Tx) error {
		runs++
		var n int
		if err := tx.QueryRow(t.Context(), "SELECT n FROM counter").Scan(&n); err != nil {
			return err
		}
		if runs == 1 {
			r.exec("UPDATE counter SET n = 10")
		}
		_, err := tx.Exec(t.Context(), "UPDATE counter SET n = $1", n+1)
		return err
	})
	r.must(err)
	wantEqual(t, "runs", runs, 2)
	wantEqual(t, "counter", read[int](r, "SELECT n FROM counter"), 11)
}

// A caller that has gone gets nothing committed that had not begun to commit; an error of fn
// comes back as it is.
func TestTransactionOfAGoneCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.exec("CREATE TABLE written (id int4)")
	mine := errors.New("mine")
	for _, d := range []dialect{s.dialect, &cockroach{timing: s.opts.Timing}} {
		ctx, cancel := context.WithCancel(t.Context())
		err := d.runTx(ctx, s.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO written VALUES (1)")
			cancel()
			return err
		})
		wantError(t, fmt.Sprintf("%T", d), err, context.Canceled)
		wantError(t, fmt.Sprintf("%T", d), d.runTx(t.Context(), s.pool, func(pgx.Tx) error { return mine }), mine)
	}
	wantEqual(t, "rows", read[int](r, "SELECT count(*) FROM written"), 0)
}

// What is sent to CockroachDB has not been run on one: it is what its documentation says, and
// whoever changes it must look there.
func TestStatementsAsPrinted(t *testing.T) {
	t.Parallel()
	for _, database := range []string{"postgres", "cockroach"} {
		var got strings.Builder
		if err := PrintMigrations(&got, database, []string{"us-east1"}); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile("testdata/" + database + ".sql")
		if err != nil || got.String() != string(want) {
			t.Errorf("testdata/%s.sql (%v) should be:\n%s", database, err, got.String())
		}
	}
	if err := PrintMigrations(&strings.Builder{}, "mysql", nil); err == nil {
		t.Error("a database that is not known was printed for")
	}
}

func TestNotADatabaseWeKnow(t *testing.T) {
	t.Parallel()
	// A function of that name before the real one in the search path.
	dsn := pgtest.Shared(t).NewDatabase(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `CREATE SCHEMA odd; CREATE FUNCTION odd.version() RETURNS text LANGUAGE sql AS 'SELECT ''Oracle''';
SET search_path = odd, pg_catalog`); err != nil {
		t.Fatal(err)
	}
	if _, err := detect(t.Context(), conn, Options{}); err == nil || !strings.Contains(err.Error(), "neither PostgreSQL nor CockroachDB") {
		t.Fatal(err)
	}
}

// A session that has not got what we asked for is not worked in.
func TestDroppedSessionParameters(t *testing.T) {
	t.Parallel()
	for _, name := range safetySettings {
		proxy := pgfault.New(t, pgtest.Shared(t).NewDatabase(t))
		proxy.DropParameter(name)
		m, err := NewMigrator(t.Context(), proxy.DSN(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Status(t.Context())
		m.Close()
		if !errors.Is(err, errUnfit) || !strings.Contains(err.Error(), name+" is ") || !strings.Contains(err.Error(), "session-mode pooler") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// On the other dialect too, as far as its settings are understood by what plays it.
func TestDroppedTimeoutOnCockroach(t *testing.T) {
	t.Parallel()
	conn := dial(t, pgtest.Shared(t).NewDatabase(t))
	c := &cockroach{timing: Timing{MaxStatement: 2 * time.Second}}
	if err := c.checkSession(t.Context(), conn); !errors.Is(err, errUnfit) {
		t.Fatal(err)
	}
	execute(t, conn, "SET statement_timeout = 2000")
	if err := c.checkSession(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
}

// A server that accepts connections and stays silent is given up soon, unless the connection
// string says when.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	opts, err := Options{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := connect(ctx, "postgres://"+listener.Addr().String()+"/db?sslmode=disable", opts); err == nil || ctx.Err() != nil {
		t.Fatalf("a silent server: %v", err)
	}
	pool, _, err := connect(ctx, with(pgtest.Shared(t).NewDatabase(t), "connect_timeout", "17"), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	wantEqual(t, "timeout of the connection string", pool.Config().ConnConfig.ConnectTimeout, 17*time.Second)
}
