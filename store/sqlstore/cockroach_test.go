package sqlstore

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
)

// asCockroach has a proxy answer, before PostgreSQL, what only CockroachDB understands. So the
// tests below show that the dialect is used throughout, not that CockroachDB takes it.
func (r *rig) asCockroach(regions ...string) *pgfault.Added {
	r.t.Helper()
	proxy := pgfault.New(r.t, r.dsn)
	proxy.DropParameter("default_transaction_use_follower_reads")
	rows := make([][]any, len(regions))
	for i, region := range regions {
		rows[i] = []any{region}
	}
	add := func(match string, do pgfault.Action) *pgfault.Added {
		return proxy.Add(pgfault.Rule{Match: regexp.MustCompile(match), Do: do})
	}
	add(`^SELECT version\(\)$`, pgfault.Answer("SELECT 1", []string{"version"}, []any{"CockroachDB CCL v25.4.0"}))
	add(`^SELECT region FROM \[SHOW REGIONS`, pgfault.Answer("SELECT", []string{"region"}, rows...))
	add(` LOCALITY REGIONAL BY TABLE IN "us-east1"`, pgfault.Rewrite(""))
	r.dsn = proxy.DSN()
	return add(`^ALTER TABLE \S+ (SPLIT AT|CONFIGURE)`, pgfault.Answer("ALTER TABLE", nil))
}

func (r *rig) detect(region string) (dialect, error) {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.dsn)
	r.must(err)
	defer conn.Close(r.t.Context())
	opts := r.opts
	opts.Region = region
	opts, err = opts.withDefaults()
	r.must(err)
	return detect(r.t.Context(), conn, opts)
}

func TestCockroachDialect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.Region = "us-east1"
	opts, err := r.opts.withDefaults()
	r.must(err)
	altered := r.asCockroach("eu-west1", "us-east1")
	d, err := r.detect("us-east1")
	r.must(err)
	wantEqual(t, "dialect", fmt.Sprintf("%T", d), "*sqlstore.cockroach")
	_, err = r.detect("us-west9")
	if err == nil || !strings.Contains(err.Error(), `region "us-west9" is not one of the database's, eu-west1, us-east1`) {
		t.Errorf("a region that the database does not have: %v", err)
	}

	s := r.replicaWith(d)
	m := &Migrator{opts: opts, pool: s.pool, dialect: d}
	made, err := m.Up(t.Context())
	r.must(err)
	wantEqual(t, "migrations", len(made), len(migrations))
	wantEqual(t, "statements on tables", altered.Fired() >= 2*2*(1+bucketsAhead), true)
	r.catchUp(s)
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	r.complete(s, key, "a")
	r.set(bucketAt(store.TierHour, began).dropAfter() + s.opts.Timing.window().Microseconds())
	wantEqual(t, "retired", len(r.maintain(s).Dropped), 1)
	r.advance(copyLag + time.Second)
	r.maintain(s)
	wantEqual(t, "table is there", r.exists(bucketAt(store.TierHour, began).table("us-east1")), false)
}

// Whatever the cluster's or the connection string's default is, CockroachDB's transactions are
// serializable.
func TestCockroachIsolation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dsn += "&default_transaction_isolation=read%20committed"
	r.asCockroach()
	opts, err := r.opts.withDefaults()
	r.must(err)
	pool, d, err := connect(t.Context(), r.dsn, opts)
	r.must(err)
	defer pool.Close()
	r.must(d.runTx(t.Context(), pool, func(tx pgx.Tx) error {
		var level string
		if err := tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil {
			return err
		}
		wantEqual(t, "isolation", level, "serializable")
		return nil
	}))
}
