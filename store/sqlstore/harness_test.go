package sqlstore

import (
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// migrateUp prepares a database.
func migrateUp(t testing.TB, dsn string, opts Options) {
	t.Helper()
	m, err := NewMigrator(t.Context(), dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dsn string, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

var dial, execute = pgtest.Dial, pgtest.Execute
