// Package sqltest gives tests stores on one PostgreSQL database whose clock the test drives.
package sqltest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
	"github.com/idemd/idemd/store/storetest"
)

// Scripted are stores that share a database of their own, as the processes of a service do.
// What they take for the database's clock follows Clock.
type Scripted struct {
	Clock  *storetest.Clock
	Stores []*sqlstore.Store

	t    testing.TB
	dsn  string
	conn *pgx.Conn
}

// scriptedClock is a row that the stores take for the database's clock.
const scriptedClock = "(SELECT at FROM test_clock)"

var schemas atomic.Int64

// newSchema makes an empty schema, which is to a store what a database is and much cheaper,
// and returns its connection string. It goes with the server.
func newSchema(t testing.TB) (dsn string) {
	t.Helper()
	name := fmt.Sprintf("scripted_%d", schemas.Add(1))
	dsn = pgtest.Shared(t).DSN("postgres") + "&search_path=" + name
	conn := dial(t, dsn)
	if _, err := conn.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	return dsn
}

func dial(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// New makes an empty database on PostgreSQL and opens so many stores on it, whose clock stands
// at [storetest.Start]. The test's end closes them.
func New(t testing.TB, stores int) *Scripted {
	t.Helper()
	return newOn(t, newSchema(t), stores)
}

func newOn(t testing.TB, dsn string, stores int) *Scripted {
	t.Helper()
	s := &Scripted{Clock: storetest.NewClock(), Stores: make([]*sqlstore.Store, stores), t: t, dsn: dsn, conn: dial(t, dsn)}
	steady := store.NewSteadyClock(s.Clock, time.Time{})
	s.execute("CREATE TABLE test_clock (at timestamptz NOT NULL)")
	s.execute("INSERT INTO test_clock VALUES ($1)", steady.Now())
	s.migrate()
	s.Open()
	t.Cleanup(s.Close)
	s.Clock.OnChange(func() {
		s.execute("UPDATE test_clock SET at = $1", steady.Now())
		s.CatchUp()
	})
	return s
}

func (s *Scripted) options() sqlstore.Options {
	return sqlstore.Options{
		MaintainEvery: -1,
		Wall:          s.Clock.Wall,
		Monotonic:     s.Clock.Monotonic,
		Clock:         sqlstore.SQLClock{Now: scriptedClock, Running: scriptedClock},
	}
}

func (s *Scripted) execute(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// context is for what goes on while the test ends.
func (s *Scripted) context() context.Context { return context.WithoutCancel(s.t.Context()) }

func (s *Scripted) migrate() {
	s.t.Helper()
	m, err := sqlstore.NewMigrator(s.context(), s.dsn, s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Up(s.context()); err != nil {
		s.t.Fatal(err)
	}
}

// CatchUp has each store learn what the others did. By themselves they do within seconds.
func (s *Scripted) CatchUp() {
	s.t.Helper()
	for _, one := range s.Stores {
		if err := one.CatchUp(s.context()); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Open opens the stores anew, after Close.
func (s *Scripted) Open() {
	s.t.Helper()
	for i := range s.Stores {
		opened, err := sqlstore.Open(s.context(), s.dsn, s.options())
		if err != nil {
			s.t.Fatal(err)
		}
		s.Stores[i] = opened
	}
}

// Close closes the stores.
func (s *Scripted) Close() {
	s.t.Helper()
	for _, one := range s.Stores {
		if one == nil {
			continue // it could not be opened
		}
		if err := one.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// Factory makes instances of one store each on PostgreSQL.
func Factory(t testing.TB) *storetest.Instance {
	t.Helper()
	return instance(New(t, 1))
}

// CockroachFactory does on the cluster that [pgtest.Cockroach] names.
func CockroachFactory(t testing.TB) *storetest.Instance {
	t.Helper()
	return instance(newOn(t, pgtest.Cockroach(t), 1))
}

func instance(s *Scripted) *storetest.Instance {
	i := &storetest.Instance{Backend: s.Stores[0], Clock: s.Clock, RetentionLag: sqlstore.RetentionLag}
	i.Reopen = func() {
		s.Close()
		s.Open()
		i.Backend = s.Stores[0]
	}
	return i
}
