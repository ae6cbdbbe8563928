package main

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// What the pages say about a bucket's table that is gone is done as it stands there: made by another
// user than idemd's, the table does not serve, and that is mended by the other statement.
func TestReadmeTableOfABucketThatIsGone(t *testing.T) {
	_, row, _ := strings.Cut(readmeText(t), "\n| notice *the table of an open bucket is gone* |")
	row, _, _ = strings.Cut(row, "\n")
	statement := func(begins string) string {
		t.Helper()
		found := regexp.MustCompile("`(" + begins + "[^`]*)`").FindStringSubmatch(row)
		if found == nil {
			t.Fatalf("no page has %s where a bucket's table is gone: %s", begins, row)
		}
		return found[1]
	}
	create, mend := statement("CREATE TABLE"), statement("ALTER TABLE")

	dsn := pgtest.Shared(t).NewDatabase(t)
	execute(t, dsn, "DROP ROLE IF EXISTS keeper")
	execute(t, dsn, "CREATE ROLE keeper LOGIN")
	t.Cleanup(func() { execute(t, dsn, "DROP OWNED BY keeper"); execute(t, dsn, "DROP ROLE keeper") })
	execute(t, dsn, "GRANT USAGE, CREATE ON SCHEMA public TO keeper")
	own := altered(t, dsn, func(u *url.URL) { u.User = url.User("keeper") })
	run(t, "migrate", "up", "--store="+own).ok(t)
	server := serveOn(t, "--store="+own)

	tables := bucketTablesIn(t, dsn)
	named := strings.NewReplacer("idem_OTHER_BUCKET", tables[1], "idem_…", tables[0], "TO idemd", "TO keeper")
	execute(t, dsn, "DROP TABLE "+tables[0])
	server.run(t, "claim", "--id=k", "--attempt=a").fails(t, exitNoAnswer, "STORE_UNAVAILABLE")
	execute(t, dsn, named.Replace(create))
	server.run(t, "claim", "--id=k", "--attempt=a").fails(t, exitNoAnswer, "STORE_UNAVAILABLE")
	execute(t, dsn, named.Replace(mend))
	until(t, func() bool { return server.run(t, "claim", "--id=k", "--attempt=a").code == exitOK })

	execute(t, dsn, "DROP TABLE "+tables[0])
	execute(t, own, named.Replace(create)) // by idemd's own user there is no more to do
	until(t, func() bool { return server.run(t, "claim", "--id=k", "--attempt=b").code == exitOK })
}

// bucketTablesIn are the tables of the buckets of a day, the current one first.
func bucketTablesIn(t *testing.T, dsn string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT tablename::text FROM pg_tables WHERE tablename LIKE 'idem\\_local\\_day\\_%' ORDER BY length(tablename), tablename")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 2 {
		t.Fatalf("tables %q, %v", names, err)
	}
	return names
}
