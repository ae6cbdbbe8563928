package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	crdbpgx "github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cockroach is CockroachDB. Everything that only CockroachDB understands is in this file,
// and names the page of its documentation that it comes from.
//
// Its statements, and those that both databases get, have not been run on CockroachDB where this
// was written; with IDEMD_COCKROACH_DSN set the whole suite is. All of them parse with its grammar
// (github.com/cockroachdb/cockroachdb-parser v0.25.2). What else is known, from its documentation
// (cockroachlabs.com/docs/v25.4), its tests (pkg/sql/logictest/testdata/logic_test) and source:
//
//	unnest of several arrays              makeVariadicUnnestGenerator in pkg/sql/sem/builtins
//	aliases of unnest's columns           logic_test/srfs
//	UPDATE … FROM several … RETURNING     logic_test/update_from; docs: update
//	FOR UPDATE OF an alias                logic_test/select_for_update
//	substring of bytea                    cockroach#46710, cockroach#58265
//	extract gives a float64               docs: functions-and-operators; see us
//	weaker isolation can be the default   docs: read-committed; see needsSeal
//
// Not found out: whether the types of all parameters are inferred where they are not written,
// whether rows are locked in the order of a sub-query's ORDER BY (if not, CockroachDB ends
// deadlocks, which are run again), and whether every plan goes by the primary key. Locks of FOR
// UPDATE can be lost when a range moves (docs: select-for-update); then SERIALIZABLE refuses
// the transaction, and nothing here relies on the lock.
type cockroach struct {
	timing  Timing
	regions []string // of the database; none if it has not been given any
}

// regionsQuery lists the regions of the current database; none if it has none.
// https://www.cockroachlabs.com/docs/v25.4/show-regions
const regionsQuery = "SELECT region FROM [SHOW REGIONS FROM DATABASE] ORDER BY region"

func detectCockroach(ctx context.Context, conn *pgx.Conn, opts Options) (dialect, error) {
	rows, err := conn.Query(ctx, regionsQuery)
	if err != nil {
		return nil, fmt.Errorf("ask CockroachDB for the regions of the database: %w", err)
	}
	regions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("ask CockroachDB for the regions of the database: %w", err)
	}
	if len(regions) > 0 && !slices.Contains(regions, opts.Region) {
		return nil, fmt.Errorf("region %q is not one of the database's, %s: keys live where CockroachDB puts the region's tables, so the names must be the same",
			opts.Region, strings.Join(regions, ", "))
	}
	return &cockroach{timing: opts.Timing, regions: regions}, nil
}

func (c *cockroach) transactionalDDL() bool { return false }

// needsSeal: a read meets a pending write of its range and waits for it. Only while both are
// serializable: of a transaction that is not, a reader moves the commit behind its own time and
// goes on (CanPushWithPriority in CockroachDB's pkg/kv/kvserver/txnwait). So session asks for it.
// What it cannot meet is a write that has not been sent: a node that stands still for longer than
// G, between a statement's look at the clock and its writes, is bounded by statement_timeout only.
// https://www.cockroachlabs.com/docs/v25.4/architecture/transaction-layer
func (c *cockroach) needsSeal() bool { return false }

// barrier: what is committed is on a majority of the replicas.
// https://www.cockroachlabs.com/docs/v25.4/architecture/replication-layer
func (c *cockroach) barrier() string { return "" }

// session: https://www.cockroachlabs.com/docs/v25.4/session-variables
func (c *cockroach) session() map[string]string {
	longest := c.timing.MaxStatement
	return map[string]string{
		"statement_timeout":                      milliseconds(longest),
		"lock_timeout":                           milliseconds(longest * 3 / 4),
		"idle_in_transaction_session_timeout":    milliseconds(longest),
		"TimeZone":                               "UTC",
		"default_transaction_isolation":          "serializable", // see needsSeal
		"default_transaction_use_follower_reads": "off",          // a follower answers with the past
		"default_transaction_read_only":          "off",
	}
}

// checkSession: without a limit in milliseconds nothing bounds a statement.
// https://www.cockroachlabs.com/docs/v25.4/show-vars
func (c *cockroach) checkSession(ctx context.Context, conn *pgx.Conn) error {
	var got string
	if err := conn.QueryRow(ctx, "SHOW statement_timeout", pgx.QueryExecModeExec).Scan(&got); err != nil {
		return err
	}
	if got == "0" || got == "0s" {
		return unfit("statement_timeout", c.session()["statement_timeout"], got)
	}
	return nil
}

// accepts: every node can write.
func (c *cockroach) accepts() pgconn.ValidateConnectFunc { return nil }

// watch: nothing that matters here changes while the cluster runs.
func (c *cockroach) watch(context.Context, rowQuerier) error { return nil }

// bucketGarbage is how long CockroachDB keeps what was overwritten in, or dropped with, a
// bucket. Ten minutes is the least that its documentation calls tested; a backup that is not
// incremental needs no more.
// https://www.cockroachlabs.com/docs/v25.4/configure-replication-zones#gc-ttlseconds
const bucketGarbage = 10 * time.Minute

func (c *cockroach) createBucket(id bucketID, region string) []string {
	table := id.table(region)
	create := fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s)", table, bucketColumns)
	if len(c.regions) > 0 {
		// https://www.cockroachlabs.com/docs/v25.4/create-table#create-a-table-with-regional-by-table-locality
		create += fmt.Sprintf(" LOCALITY REGIONAL BY TABLE IN %q", region)
	}
	return []string{
		create,
		// A new table is one range, which one node would serve alone. Splitting again where
		// it is split already does nothing.
		// https://www.cockroachlabs.com/docs/v25.4/alter-table#split-at
		fmt.Sprintf("ALTER TABLE %s SPLIT AT VALUES %s", table, splits(16)),
		// https://www.cockroachlabs.com/docs/v25.4/alter-table#configure-zone
		fmt.Sprintf("ALTER TABLE %s CONFIGURE ZONE USING gc.ttlseconds = %d", table, int(bucketGarbage.Seconds())),
	}
}

// splits are the digests that divide all into n equal parts.
func splits(n int) string {
	values := make([]string, 0, n)
	for i := 1; i < n; i++ {
		values = append(values, fmt.Sprintf(`(x'%02x')`, i*256/n))
	}
	return strings.Join(values, ", ")
}

// runTx: https://www.cockroachlabs.com/docs/v25.4/advanced-client-side-transaction-retries
// RELEASE is the commit there, and runs on the context given to ExecuteTx, so that one does
// not end with the caller's.
func (c *cockroach) runTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	bounded, cancel := detached(ctx, 4*c.timing.MaxStatement)
	defer cancel()
	bounded = crdb.WithRetryPolicy(bounded, &crdb.ExpBackoffRetryPolicy{
		RetryLimit: tries, BaseDelay: 2 * time.Millisecond, MaxDelay: 200 * time.Millisecond,
	})
	return crdbpgx.ExecuteTx(bounded, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		return ctx.Err()
	})
}
