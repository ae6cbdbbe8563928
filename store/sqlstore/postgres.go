package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const oldestPostgres = 15

// postgres is PostgreSQL from version 15 on.
type postgres struct {
	timing            Timing
	synchronousCommit string      // of our sessions
	replicated        atomic.Bool // a COMMIT of our sessions waits for a standby
}

// postgresFacts are what a server says of itself.
type postgresFacts struct {
	Version                         int
	InRecovery, ReadOnly, FullySync bool
	SynchronousCommit, StandbyNames string
}

func detectPostgres(ctx context.Context, conn *pgx.Conn, opts Options) (dialect, error) {
	rows, err := conn.Query(ctx, `SELECT current_setting('server_version_num')::int4 / 10000, pg_is_in_recovery(),
  current_setting('transaction_read_only')::bool, current_setting('fsync')::bool, current_setting('synchronous_commit'),
  current_setting('synchronous_standby_names')`)
	if err != nil {
		return nil, fmt.Errorf("ask PostgreSQL for its settings: %w", err)
	}
	facts, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[postgresFacts])
	if err != nil {
		return nil, fmt.Errorf("ask PostgreSQL for its settings: %w", err)
	}
	if err := facts.check(); err != nil {
		return nil, err
	}
	if !facts.FullySync {
		opts.Logger.Warn("the server runs with fsync=off: a power loss can undo what was answered")
	}
	p := &postgres{timing: opts.Timing, synchronousCommit: facts.commit()}
	p.standbys(facts.StandbyNames)
	return p, nil
}

// check refuses a server that cannot keep the promises.
func (f postgresFacts) check() error {
	switch {
	case f.Version < oldestPostgres:
		return fmt.Errorf("the server is PostgreSQL %d; idemd needs %d or newer", f.Version, oldestPostgres)
	case f.InRecovery:
		return errors.New("the server is a standby, which cannot write: name the primary, or all servers with target_session_attrs=read-write")
	case f.ReadOnly:
		return errors.New("the server is read-only for this user or database (default_transaction_read_only)")
	}
	return nil
}

// commit is what our sessions wait for at a COMMIT: an answer must not come before what it
// says is safe.
func (f postgresFacts) commit() string {
	if f.SynchronousCommit == "off" {
		return "on"
	}
	return f.SynchronousCommit
}

// watch: synchronous_standby_names may change by a reload, and another server has its own.
func (p *postgres) watch(ctx context.Context, q rowQuerier) error {
	var names string
	if err := q.QueryRow(ctx, "SELECT current_setting('synchronous_standby_names')").Scan(&names); err != nil {
		return err
	}
	p.standbys(names)
	return nil
}

func (p *postgres) standbys(names string) {
	p.replicated.Store(names != "" && p.synchronousCommit != "local")
}

// barrier: a commit can be read before a synchronous standby has it, and a failover may then
// lose what was answered already. A record in the log of the reading transaction's own makes
// its COMMIT wait until all before it is there.
// https://www.postgresql.org/docs/15/functions-admin.html#FUNCTIONS-REPLICATION
func (p *postgres) barrier() string {
	if !p.replicated.Load() {
		return ""
	}
	return "SELECT pg_logical_emit_message(true, 'idemd', '')"
}

func (p *postgres) needsSeal() bool        { return true }
func (p *postgres) transactionalDDL() bool { return true }

// session: a plan made while a bucket was empty must still be the right one when it has
// grown, so every table is reached by its primary key, whatever the planner thinks of its
// size.
func (p *postgres) session() map[string]string {
	longest := p.timing.MaxStatement
	return map[string]string{
		"statement_timeout":                   milliseconds(longest),
		"lock_timeout":                        milliseconds(max(longest/20, 50*time.Millisecond)), // of a batch, see tryTx
		"idle_in_transaction_session_timeout": milliseconds(longest),
		"synchronous_commit":                  p.synchronousCommit,
		"TimeZone":                            "UTC",
		"jit":                                 "off",
		"enable_seqscan":                      "off",
		"enable_hashjoin":                     "off",
		"enable_mergejoin":                    "off",
		"plan_cache_mode":                     "force_generic_plan",
	}
}

// safetySettings are the parameters of session that the protocol and its promises rest on. A
// pooler that gives each transaction another session drops them, and so do some that are told
// to ignore what they do not know.
var safetySettings = []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit"}

func (p *postgres) checkSession(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "SELECT name, setting FROM pg_settings WHERE name = ANY($1)", pgx.QueryExecModeExec, safetySettings)
	if err != nil {
		return err
	}
	want := p.session()
	var name, got string
	_, err = pgx.ForEachRow(rows, []any{&name, &got}, func() error {
		if got != want[name] {
			return unfit(name, want[name], got)
		}
		return nil
	})
	return err
}

// createBucket: markers and settled rows are updated in place, most rows are written two or
// three times; the free space keeps those versions on the page they are on.
func (p *postgres) createBucket(id bucketID, region string) []string {
	return []string{fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s) WITH (fillfactor = 70)", id.table(region), bucketColumns)}
}

// accepts refuses a server that cannot write: after a failover the old primary may be one.
func (p *postgres) accepts() pgconn.ValidateConnectFunc { return writable }

func writable(ctx context.Context, conn *pgconn.PgConn) error {
	return pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn)
}

// runTx is not that of cockroach-go, which on PostgreSQL takes a COMMIT that failed for done.
func (p *postgres) runTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	for n := 0; ; n++ {
		err := p.tryTx(ctx, pool, fn)
		if !conflict(err) || n >= tries {
			return err
		}
		if ended := backoff(ctx, n+2); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// conflict says that the database rolled a transaction back because of others.
func conflict(err error) bool { return hasCode(err, "40001", "40P01") }

func (p *postgres) tryTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	// A transaction of one operation waits for a lock; a batch, in which others would wait
	// too, only shortly.
	begin := "BEGIN; SET LOCAL lock_timeout = " + milliseconds(p.timing.MaxStatement*3/4)
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		return err
	}
	ending, cancel := detached(ctx, 2*p.timing.MaxStatement+time.Second)
	defer cancel()
	defer func() { _ = tx.Rollback(ending) }() // does nothing after Commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return tx.Commit(ending)
}
