package sqlstore

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// A user who may not do what operations need is refused at the start, with what to run.
func TestOpenChecksRights(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{})
	admin := dial(t, dsn)
	execute(t, admin, "DROP ROLE IF EXISTS reader")
	execute(t, admin, "CREATE ROLE reader LOGIN")
	t.Cleanup(func() {
		execute(t, admin, "DROP OWNED BY reader")
		execute(t, admin, "DROP ROLE reader")
	})
	reader, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	reader.User = url.User("reader")

	for _, step := range []struct{ grant, want string }{
		{"GRANT pg_read_all_data TO reader", "GRANT USAGE, CREATE ON SCHEMA public TO reader"},
		{"GRANT USAGE, CREATE ON SCHEMA public TO reader", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader"},
		{"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader", "OWNER TO reader"},
	} {
		execute(t, admin, step.grant)
		s, err := Open(t.Context(), reader.String(), Options{MaintainEvery: -1})
		if err == nil {
			closeStore(t, s)
		}
		if !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), step.want) {
			t.Fatalf("after %s: %v, want %q", step.grant, err, step.want)
		}
	}
	execute(t, admin, `DO $$ DECLARE name text; BEGIN FOR name IN SELECT tablename FROM pg_tables WHERE tablename ~ '^idem_local_' LOOP
		EXECUTE 'ALTER TABLE ' || name || ' OWNER TO reader'; END LOOP; END $$`)
	closeStore(t, open(t, reader.String(), Options{MaintainEvery: -1}))
}

// A bucket whose table somebody has dropped is told of, and not made again as if it had been
// empty.
func TestHealthSaysThatATableIsGone(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{})
	s := open(t, dsn, Options{MaintainEvery: -1})
	defer closeStore(t, s)
	if err := s.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := s.catalog.copy.Load().tables(s.opts.Region)[0]
	execute(t, dial(t, dsn), "DROP TABLE "+name)
	for what, err := range map[string]error{"health": s.Health(t.Context()), "maintenance": s.provideNext(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "is gone") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.checkTables(t.Context(), s.catalog.copy.Load()); err == nil {
		t.Error("the table was made again")
	}
	// As deploy/DATABASE.md says it is made again by hand.
	names := s.catalog.copy.Load().tables(s.opts.Region)
	execute(t, dial(t, dsn), "CREATE TABLE "+name+" (LIKE "+names[1]+" INCLUDING ALL) WITH (fillfactor = 70)")
	if err := s.Health(t.Context()); err != nil {
		t.Error(err)
	}
	var same bool
	err := s.pool.QueryRow(t.Context(), `SELECT count(*) = 2 AND count(DISTINCT reloptions::text) = 1 AND bool_and(relhasindex) FROM pg_class
WHERE relname IN ($1, $2)`, name, names[1]).Scan(&same)
	if err != nil || !same {
		t.Errorf("made by hand it is not as the others are: %v", err)
	}
}
