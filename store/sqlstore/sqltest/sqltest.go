// Package sqltest gives tests stores on one PostgreSQL database whose clock the test drives.
package sqltest

import (
	"context"
	"testing"
	"time"

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

	t testing.TB
	database
}

// scriptedClock is a row that the stores take for the database's clock.
const scriptedClock = "(SELECT at FROM test_clock)"

// New makes an empty database on PostgreSQL and opens so many stores on it, whose clock stands
// at [storetest.Start]. The test's end closes them.
func New(t testing.TB, stores int) *Scripted {
	t.Helper()
	return newOn(t, newSchema(t, "local"), stores)
}

// newOn opens stores on a database that has been migrated.
func newOn(t testing.TB, db database, stores int) *Scripted {
	t.Helper()
	s := &Scripted{Clock: storetest.NewClock(), Stores: make([]*sqlstore.Store, stores), t: t, database: db}
	steady := store.NewSteadyClock(s.Clock, time.Time{})
	s.Open()
	t.Cleanup(s.Close)
	s.Clock.OnChange(func() {
		pgtest.Execute(t, s.conn, "UPDATE test_clock SET at = $1", steady.Now())
		s.CatchUp() // a store may have read the time just before
	})
	return s
}

func (s *Scripted) options() sqlstore.Options {
	opts := scripted(s.region)
	opts.Wall, opts.Monotonic = s.Clock.Wall, s.Clock.Monotonic
	return opts
}

// context is for what goes on while the test ends.
func (s *Scripted) context() context.Context { return context.WithoutCancel(s.t.Context()) }

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
		opened, err := sqlstore.Open(s.context(), s.stores, s.options())
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
	dsn := pgtest.Cockroach(t)
	db := database{conn: pgtest.Dial(t, dsn), stores: dsn, region: "local"}
	migrate(t, db)
	return instance(newOn(t, db, 1))
}

// Through makes instances of one store each on PostgreSQL, whose connections go where way says:
// it gets the connection string of the database and returns that of a proxy. All instances of a
// region must go alike.
func Through(region string, way func(t testing.TB, dsn string) string) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		t.Helper()
		return instance(newOn(t, newSchemaThrough(t, region, way), 1))
	}
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
