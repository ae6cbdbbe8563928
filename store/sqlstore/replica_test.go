package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/pagetoken"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// began is where a test's clock stands at first: within a bucket of every tier.
var began = time.Date(2026, 3, 1, 10, 7, 0, 0, time.UTC).UnixMicro()

// rig is a database with a clock of its own, and replicas on it.
type rig struct {
	t    *testing.T
	dsn  string
	mu   sync.Mutex // of conn, by which replicas' wall clocks are read too
	conn *pgx.Conn
	opts Options
}

func newRig(t *testing.T) *rig { return newRigOn(t, pgtest.Shared(t).NewDatabase(t)) }

func newRigOn(t *testing.T, dsn string) *rig {
	r := &rig{t: t, dsn: dsn, opts: Options{MaintainEvery: -1}}
	conn, err := pgx.Connect(t.Context(), r.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	r.conn = conn
	r.exec("CREATE TABLE test_clock (at timestamptz NOT NULL)")
	r.exec("INSERT INTO test_clock VALUES ($1)", timeOf(began))
	r.opts.Clock = SQLClock{Now: "(SELECT at FROM test_clock)", Running: "(SELECT at FROM test_clock)"}
	r.opts.Wall = r.wall()
	return r
}

// wall is a wall clock that shows what the database's does. It has a connection of its own,
// because replicas look at it at any time.
func (r *rig) wall() func() time.Time {
	var mu sync.Mutex
	conn := dial(r.t, r.dsn)
	return func() (now time.Time) {
		mu.Lock()
		defer mu.Unlock()
		if err := conn.QueryRow(context.Background(), "SELECT at FROM test_clock").Scan(&now); err != nil {
			r.t.Error(err)
		}
		return now
	}
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.conn.Exec(context.WithoutCancel(r.t.Context()), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// read reads one value.
func read[T any](r *rig, sql string, args ...any) (value T) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.conn.QueryRow(r.t.Context(), sql, args...).Scan(&value); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func (r *rig) now() time.Time { return read[time.Time](r, "SELECT at FROM test_clock") }

// set moves the database's clock.
func (r *rig) set(us int64) { r.t.Helper(); r.exec("UPDATE test_clock SET at = $1", timeOf(us)) }

func (r *rig) advance(d time.Duration) { r.t.Helper(); r.set(r.now().Add(d).UnixMicro()) }

func (r *rig) migrate() {
	r.t.Helper()
	m, err := NewMigrator(r.t.Context(), r.dsn, r.opts)
	r.must(err)
	defer m.Close()
	_, err = m.Up(r.t.Context())
	r.must(err)
}

// replica opens a store whose background work the test does itself.
func (r *rig) replica() *Store {
	r.t.Helper()
	opts, err := r.opts.withDefaults()
	r.must(err)
	pool, d, err := connect(r.t.Context(), r.dsn, opts)
	r.must(err)
	s := r.storeOn(opts, pool, d)
	r.catchUp(s)
	return s
}

// replicaWith is a replica of a dialect that is not the server's, whose session parameters the
// server would not know.
func (r *rig) replicaWith(d dialect) *Store {
	r.t.Helper()
	opts, err := r.opts.withDefaults()
	r.must(err)
	pool, err := pgxpool.New(r.t.Context(), r.dsn)
	r.must(err)
	return r.storeOn(opts, pool, d)
}

func (r *rig) storeOn(opts Options, pool *pgxpool.Pool, d dialect) *Store {
	clock := newDBClock(opts)
	clock.monotonic = nil // it stands still
	t := newTexts(opts)
	s := &Store{opts: opts, pool: pool, dialect: d, pages: pagetoken.New(nil), texts: t, clock: clock, catalog: newCatalog(pool, t, clock, opts.Logger)}
	s.catalog.watch, s.catalog.damaged = d.watch, opts.Observer.Damaged
	s.seal = newSealer(pool, d, opts, clock, s.catalog)
	s.ending, s.end = context.WithCancel(context.Background())
	s.batches = s.newBatches()
	r.t.Cleanup(func() { r.must(s.Close()) })
	return s
}

// catchUp lets a replica see that the clock has moved.
func (r *rig) catchUp(s *Store) {
	r.t.Helper()
	r.must(s.catalog.refresh(r.t.Context()))
	r.must(s.provide(r.t.Context()))
	for len(s.seal.pending()) > 0 { // other tests' transactions on the server are waited for
		r.must(s.provide(r.t.Context()))
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// grant claims a key and returns the fence.
func (r *rig) grant(s *Store, req store.ClaimRequest) int64 {
	r.t.Helper()
	answer, err := s.Claim(r.t.Context(), req)
	r.must(err)
	if answer.Granted == nil {
		r.t.Fatalf("claim of %q: %+v", req.Key.ID, answer)
	}
	return answer.Granted.Fence
}

func (r *rig) complete(s *Store, key store.Key, attempt string) {
	r.t.Helper()
	fence := r.grant(s, store.ClaimRequest{Key: key, AttemptID: attempt})
	_, err := s.Complete(r.t.Context(), store.CompleteRequest{Key: key, AttemptID: attempt, Fence: fence, Outcome: &store.Outcome{Body: []byte("done")}})
	r.must(err)
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s: want %v, got %v", what, want, got)
	}
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Fatalf("%s:\nwant %s\ngot  %s", what, w, g)
	}
}
