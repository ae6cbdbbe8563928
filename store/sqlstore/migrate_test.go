package sqlstore

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

func (r *rig) migrator() *Migrator {
	r.t.Helper()
	m, err := NewMigrator(r.t.Context(), r.dsn, r.opts)
	r.must(err)
	r.t.Cleanup(m.Close)
	return m
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.migrator()
	names := make([]string, len(migrations))
	for i, step := range migrations {
		names[i] = step.name
	}
	status, err := m.Status(t.Context())
	r.must(err)
	wantEqual(t, "status before", status, SchemaStatus{Version: 0, Release: schemaVersion, Pending: names})
	err = checkSchema(t.Context(), m.pool)
	wantError(t, "a database without a schema", err, ErrSchemaOlder)
	if !strings.Contains(err.Error(), "run `idemd migrate up`") {
		t.Errorf("it does not say what to do: %v", err)
	}

	made, err := m.Up(t.Context())
	r.must(err)
	wantEqual(t, "made", made, names)
	r.must(checkSchema(t.Context(), m.pool))
	status, err = m.Status(t.Context())
	r.must(err)
	wantEqual(t, "status after", status, SchemaStatus{Version: schemaVersion, Release: schemaVersion})
	made, err = m.Up(t.Context())
	r.must(err)
	wantEqual(t, "made again", made, []string{})

	s := r.replica()
	ns, err := s.GetNamespace(t.Context(), store.DefaultNamespace)
	r.must(err)
	wantEqual(t, "retention of the first namespace", ns.Retention, store.DefaultRetention)
	r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: "k"}, AttemptID: "a"})
}

// Processes that start at the same time may all migrate.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for name, up := range map[string]func(*rig, *Migrator) ([]string, error){
		"in a transaction": func(r *rig, m *Migrator) ([]string, error) { return m.Up(r.t.Context()) },
		"by statement": func(r *rig, m *Migrator) (made []string, err error) {
			err = define(r.t.Context(), m.pool, time.Minute, func(d definer) error {
				made, err = upByStatement(r.t.Context(), repeating{d})
				return err
			})
			return made, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var (
				all  sync.WaitGroup
				errs = make([]error, 6)
				made = make([][]string, 6)
			)
			for i := range errs {
				m := r.migrator()
				all.Go(func() { made[i], errs[i] = up(r, m) })
			}
			all.Wait()
			for _, err := range errs {
				r.must(err)
			}
			if name == "in a transaction" {
				wantEqual(t, "migrations made by all", len(slices.Concat(made...)), len(migrations))
			}
			wantEqual(t, "rows of idem_schema", read[int](r, "SELECT count(*) FROM idem_schema"), len(migrations))
		})
	}
}

// A replica works on with a newer schema that says so, and with no other.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.exec("INSERT INTO idem_schema VALUES ($1, $2)", schemaVersion+1, schemaVersion)
	r.must(checkSchema(t.Context(), s.pool))
	r.must(s.catalog.refresh(t.Context()))

	r.exec("INSERT INTO idem_schema VALUES ($1, $2)", schemaVersion+2, schemaVersion+1)
	wantError(t, "start", checkSchema(t.Context(), s.pool), ErrSchemaNewer)
	err := s.catalog.refresh(t.Context())
	wantError(t, "refresh", err, store.ErrUnavailable)
	wantError(t, "refresh", err, ErrSchemaNewer)
	_, err = r.migrator().Up(t.Context())
	wantError(t, "up of an old release", err, ErrSchemaNewer)
}

func TestParseMigration(t *testing.T) {
	t.Parallel()
	m, err := parseMigration("0007_more.sql", "-- compatible: 5\nCREATE TABLE a (\n  b int4\n);\n\n-- why\nALTER TABLE c;\n")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "migration", m, migration{version: 7, compatible: 5, name: "0007_more", statements: []string{"CREATE TABLE a (\n  b int4\n)", "-- why\nALTER TABLE c"}})
	for _, bad := range [][2]string{{"x_more.sql", "-- compatible: 5\n"}, {"0001_more.sql", "CREATE TABLE a ()"}} {
		if _, err := parseMigration(bad[0], bad[1]); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}
