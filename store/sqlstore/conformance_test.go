package sqlstore

import (
	"context"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
	"github.com/idemd/idemd/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, scriptedFactory) }

func TestGolden(t *testing.T) { storetest.RunGolden(t, scriptedFactory) }

// scriptedFactory makes stores in databases of their own, whose clock is a row that follows
// the instance's clock.
func scriptedFactory(t testing.TB) *storetest.Instance {
	dsn := pgtest.Shared(t).NewDatabase(t)
	clock := storetest.NewClock()
	steady := store.NewSteadyClock(clock, time.Time{})
	conn := dial(t, dsn)
	execute(t, conn, "CREATE TABLE test_clock (at timestamptz NOT NULL)")
	execute(t, conn, "INSERT INTO test_clock VALUES ($1)", steady.Now())
	opts := Options{
		MaintainEvery: -1,
		Wall:          clock.Wall,
		Monotonic:     clock.Monotonic,
		Clock:         SQLClock{Now: "(SELECT at FROM test_clock)", Running: "(SELECT at FROM test_clock)"},
	}
	migrateUp(t, dsn, opts)
	s := open(t, dsn, opts)
	instance := &storetest.Instance{Backend: s, Clock: clock}
	clock.OnChange(func() {
		execute(t, conn, "UPDATE test_clock SET at = $1", steady.Now())
		if err := s.catalog.refresh(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := s.provide(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
	instance.Reopen = func() {
		closeStore(t, s)
		s = open(t, dsn, opts)
		instance.Backend = s
	}
	t.Cleanup(func() { closeStore(t, s) })
	return instance
}
