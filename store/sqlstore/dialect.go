package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dialect is what differs between the databases. The statements on records do not.
type dialect interface {
	// session are the run-time parameters of every connection of the pool.
	session() map[string]string
	// checkSession refuses a connection whose session has not got the parameters that safety
	// rests on: something between here and the server kept them.
	checkSession(ctx context.Context, conn *pgx.Conn) error
	// accepts refuses a server of those that the connection string names; nil if all will do.
	accepts() pgconn.ValidateConnectFunc
	// watch reads what the server may change while it runs, and a failover may change.
	watch(ctx context.Context, q rowQuerier) error
	// createBucket are the statements that make a bucket's table. They can be repeated.
	createBucket(id bucketID, region string) []string
	// needsSeal says that a transaction can still commit after what it wrote was looked for
	// and not seen.
	needsSeal() bool
	// barrier is a statement after which a reading transaction ends only when what it has
	// read is on the replicas too; empty if what can be read always is. It is as of the last
	// watch, so a setting that turns it on counts from the next refresh of the catalog on.
	barrier() string
	// transactionalDDL says that a migration can be one transaction.
	transactionalDDL() bool
	// runTx runs fn in a transaction and commits it, again from the start when the database
	// asks for that. What has begun to commit does not end with ctx, but in bounded time.
	runTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error
}

// detect asks the server what it is, and refuses one that cannot keep the promises.
func detect(ctx context.Context, conn *pgx.Conn, opts Options) (dialect, error) {
	var version string
	if err := conn.QueryRow(ctx, "SELECT version()").Scan(&version); err != nil {
		return nil, fmt.Errorf("ask the database for its version: %w", err)
	}
	switch {
	case strings.HasPrefix(version, "CockroachDB"):
		return detectCockroach(ctx, conn, opts)
	case strings.HasPrefix(version, "PostgreSQL"):
		return detectPostgres(ctx, conn, opts)
	}
	return nil, fmt.Errorf("the database is neither PostgreSQL nor CockroachDB: %s", version)
}

// connectTimeout bounds the making of a connection, also to a server that accepts it and
// says nothing.
const connectTimeout = 5 * time.Second

// errUnfit says that a connection was refused by checkSession.
var errUnfit = errors.New("the session is not safe to work in")

func unfit(setting, want, got string) error {
	return fmt.Errorf("%w: %s is %s and not %s: something between here and the database dropped it; connect to the database directly or with a session-mode pooler",
		errUnfit, setting, got, want)
}

// connect opens the pool of connections to the database that dsn names.
func connect(ctx context.Context, dsn string, opts Options) (*pgxpool.Pool, dialect, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = "idemd"
	if config.ConnConfig.ConnectTimeout == 0 { // the connection string names none
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, nil, err
	}
	d, err := detect(ctx, conn, opts.inRealTime())
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return nil, nil, err
	}
	maps.Copy(config.ConnConfig.RuntimeParams, d.session())
	if config.ConnConfig.ValidateConnect == nil {
		config.ConnConfig.ValidateConnect = d.accepts()
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		bounded, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		return d.checkSession(bounded, conn)
	}
	// What the database's makers advise: as many idle as open, and a lifetime with jitter,
	// so that connections spread again after a node was away.
	// https://www.cockroachlabs.com/docs/v25.4/connection-pooling
	config.MaxConns = int32(opts.MaxConns)
	config.MaxConnIdleTime = 5 * time.Minute
	config.MaxConnLifetime = 5 * time.Minute
	config.MaxConnLifetimeJitter = 30 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, d, err
}

// How long one statement that creates, changes or drops a table may run: where buckets are
// made many are still ahead, a migration may have to write every row.
const (
	bucketTimeout    = 5 * time.Minute
	migrationTimeout = time.Hour
	// answerTime is how much longer than the server's own limit an answer is waited for.
	answerTime = time.Second
)

// definitionPatience is how long such a statement waits for a lock.
const definitionPatience = 250 * time.Millisecond

// definer is a connection for statements on whole tables. Each has a limit on both sides: the
// network may be silent.
type definer struct {
	conn    *pgx.Conn
	longest time.Duration
}

// define runs f on a connection of its own, for statements on whole tables: they may take
// longer than those on records, and must work when all other connections are busy. They wait
// only shortly for locks, because all who come later would wait behind them.
func define(ctx context.Context, pool *pgxpool.Pool, longest time.Duration, f func(definer) error) (err error) {
	config := pool.Config().ConnConfig
	config.RuntimeParams["statement_timeout"] = milliseconds(longest)
	config.RuntimeParams["lock_timeout"] = milliseconds(definitionPatience)
	config.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(longest)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := detached(ctx, time.Second)
		defer cancel()
		err = errors.Join(err, conn.Close(closing))
	}()
	return f(definer{conn, longest})
}

func (d definer) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	bounded, cancel := context.WithTimeout(ctx, d.longest+answerTime)
	defer cancel()
	return d.conn.Exec(bounded, sql, args...)
}

func (d definer) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	bounded, cancel := context.WithTimeout(ctx, d.longest+answerTime)
	return boundedRow{d.conn.QueryRow(bounded, sql, args...), cancel}
}

// boundedRow has a limit that ends with its Scan.
type boundedRow struct {
	pgx.Row
	done context.CancelFunc
}

func (r boundedRow) Scan(targets ...any) error {
	defer r.done()
	return r.Row.Scan(targets...)
}

// detached is a context that does not end with ctx, but after a time.
func detached(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), after)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// bucketColumns are the columns of a bucket's table, in both databases' SQL. Of a marker only
// the digest and the state mean anything: one that was put there has nothing else, one that a
// row left behind still has what the row had.
const bucketColumns = `
  digest bytea PRIMARY KEY,
  key bytea NOT NULL DEFAULT '',
  state int2 NOT NULL,
  fence int8 NOT NULL DEFAULT 0,
  previous_fence int8 NOT NULL DEFAULT 0,
  attempt bytea NOT NULL DEFAULT '',
  attempt_number int4 NOT NULL DEFAULT 0,
  fp_version int8 NOT NULL DEFAULT 0,
  fp bytea NOT NULL DEFAULT '',
  granted_at int8 NOT NULL DEFAULT 0,
  lease_end int8 NOT NULL DEFAULT 0,
  attempt_limit int8 NOT NULL DEFAULT 0,
  ended_at int8,
  expires_at int8,
  lapse_policy int2 NOT NULL DEFAULT 0,
  retention int8 NOT NULL DEFAULT 0,
  unsettled bool NOT NULL DEFAULT false,
  unsettled_since int8,
  released_with int2 NOT NULL DEFAULT 0,
  ended bytea NOT NULL DEFAULT '',
  outcome bytea,
  outcome_digest bytea,
  events bytea
`
