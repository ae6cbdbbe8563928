package main

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store/sqlstore"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// migrated makes a database that is ready to be served.
func migrated(t *testing.T) (dsn string) {
	t.Helper()
	dsn = pgtest.Shared(t).NewDatabase(t)
	run(t, "migrate", "up", "--store="+dsn).ok(t)
	return dsn
}

// execute runs a statement on a database.
func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also as the test ends
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// altered is the connection string with another user, password or database.
func altered(t *testing.T, dsn string, alter func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	alter(u)
	return u.String()
}

const secret = "correct-horse"

// withSecret is the connection string with a password, which the servers of the tests ignore.
func withSecret(t *testing.T, dsn string) string {
	t.Helper()
	return altered(t, dsn, func(u *url.URL) { u.User = url.UserPassword("postgres", secret) })
}

// TestServeDatabase has two processes on one database tell each other's callers what happened.
func TestServeDatabase(t *testing.T) {
	dsn := migrated(t)
	one, other := startChildOn(t, "--store="+dsn), startChildOn(t, "--store="+dsn)
	ask := func(c *child, args ...string) string {
		t.Helper()
		return run(t, append(args, "--addr="+c.addr, "--id=order-1")...).ok(t)
	}
	expect := func(got, want string) {
		t.Helper()
		if !strings.HasPrefix(got, want) {
			t.Errorf("got %s\nwant %q", got, want)
		}
	}
	expect(ask(one, "claim", "--attempt=try-1"), "granted: act now")
	expect(ask(other, "claim", "--attempt=try-2"), "in progress")
	expect(ask(other, "complete", "--attempt=try-1", "--outcome=charged"), "completed")
	if got := ask(one, "claim", "--attempt=try-3"); !strings.Contains(got, "charged") {
		t.Errorf("a repeat by way of the first process: %s", got)
	}
	for _, c := range []*child{one, other} {
		c.kill()
		c.wait()
	}
	if got := ask(startChildOn(t, "--store="+dsn), "claim"); !strings.Contains(got, "charged") {
		t.Errorf("a repeat after kill -9 of both: %s", got)
	}
}

func TestServeDatabaseKeepsThePassword(t *testing.T) {
	dsn := withSecret(t, migrated(t))
	t.Setenv("IDEMD_STORE", dsn)
	admin := freeAddr(t)
	s := serveOn(t, "--log-level=debug", "--admin-addr="+admin)
	s.run(t, "claim", "--id=a").ok(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	want := "  database  " + strings.TrimPrefix(u.Path, "/") + " at " + net.JoinHostPort(u.Query().Get("host"), "5432") + " as postgres"
	if len(s.banner) != 7 || strings.Join(strings.Fields(s.banner[1]), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("banner %q, want a line %q", s.banner, want)
	}
	metrics := get(t, "http://"+admin+"/metrics")
	if !strings.Contains(metrics, "\nidemd_buckets_ahead 2\n") || !strings.Contains(metrics, "idemd_commit_operations_sum 1\n") {
		t.Errorf("metrics:\n%s", metrics)
	}
	if got := get(t, "http://"+admin+"/healthz"); !strings.HasPrefix(got, `{"status":"serving","notice":"region local was made new`) {
		t.Errorf("/healthz: %s", got)
	}
	if code := s.stop(); code != exitOK {
		t.Errorf("orderly end: exit code %d", code)
	}
	if text := s.stderr.String(); !strings.Contains(text, "msg=serving address=127.0.0.1:") || !strings.Contains(text, " as postgres, region local") {
		t.Errorf("the log does not say where it serves:\n%s", text)
	}
	if text := s.stderr.String() + strings.Join(s.banner, "\n"); strings.Contains(text, secret) {
		t.Errorf("the password is shown:\n%s", text)
	}
}

// TestServeDatabaseRefuses checks that what cannot be served is refused with one line that
// says what to do, and never shows a password.
func TestServeDatabaseRefuses(t *testing.T) {
	server := pgtest.Shared(t)
	ready, fresh := migrated(t), server.NewDatabase(t)
	newer := migrated(t)
	execute(t, newer, "INSERT INTO idem_schema (version, compatible) VALUES (99, 99)")
	readOnly := migrated(t)
	execute(t, readOnly, "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close() // nobody listens there now
	closed := listener.Addr().String()
	execute(t, ready, "DROP ROLE IF EXISTS guest")
	execute(t, ready, "CREATE ROLE guest LOGIN")
	t.Cleanup(func() { execute(t, server.DSN("postgres"), "DROP ROLE guest") })
	guest := func(u *url.URL) { u.User = url.UserPassword("guest", secret) }

	for name, test := range map[string]struct {
		command []string // serve if nil
		store   string
		args    []string
		code    int // exitFailed if zero
		want    []string
	}{
		"two stores":        {store: withSecret(t, ready), args: []string{"--data-dir=" + t.TempDir()}, code: exitUsage, want: []string{"--store", "--data-dir", "both"}},
		"empty":             {code: exitUsage, want: []string{"--store is empty"}},
		"no URL":            {store: "postgres:" + secret, code: exitUsage, want: []string{"postgres://USER@HOST:PORT/DATABASE"}},
		"slash in password": {store: "postgres://u:" + secret + "/x@host/db", code: exitUsage, want: []string{"postgres://USER@HOST:PORT/DATABASE", "%2F"}},
		"at in password":    {store: "postgres://u:x@" + secret + "@127.0.0.1:1/db", code: exitUsage, want: []string{"postgres://USER@HOST:PORT/DATABASE", "%40"}},
		"port in password":  {store: "postgres://u:12/" + secret + "@127.0.0.1:1/db", code: exitUsage, want: []string{"%2F"}},
		"setting and at":    {store: "postgres://127.0.0.1:1?password=" + secret + "@x", code: exitUsage, want: []string{"%40"}},
		"at in a setting":   {store: "postgres://u@127.0.0.1:1/db?password=x@" + secret, code: exitUsage, want: []string{"%40"}},
		"host with at":      {store: "user=u host=" + secret + "@127.0.0.1 port=1", code: exitUsage, want: []string{"%40"}},
		"another database":  {store: "mysql://u:" + secret + "@127.0.0.1/db", code: exitUsage, want: []string{"mysql://", "PostgreSQL and CockroachDB", "postgres://"}},
		"bad setting":       {store: "postgres://u:" + secret + "@host/db?sslmode=maybe", code: exitUsage, want: []string{"TLS"}},
		"no certificate":    {store: "postgres://u:" + secret + "@host/db?sslmode=verify-full&sslrootcert=/no/such/file", code: exitUsage, want: []string{"--store names a file that cannot be read", "/no/such/file"}},
		"bad region":        {store: withSecret(t, ready), args: []string{"--region=No"}, code: exitUsage, want: []string{`--region "No"`}},
		"no connections":    {store: withSecret(t, ready), args: []string{"--store-conns=0"}, code: exitUsage, want: []string{"--store-conns 0", "1 or more"}},
		"nobody there":      {store: "postgres://u:" + secret + "@" + closed + "/db", want: []string{closed, "refused", "running"}},
		"no such host":      {store: "postgres://u:" + secret + "@no-such-host.invalid/db", want: []string{"no-such-host.invalid", "host's name"}},
		"no such database":  {store: altered(t, withSecret(t, ready), func(u *url.URL) { u.Path = "/nowhere" }), want: []string{"nowhere", "createdb", "idemd migrate up"}},
		"no such user":      {store: altered(t, ready, func(u *url.URL) { u.User = url.UserPassword("nobody", secret) }), want: []string{"nobody", "check user and password"}},
		"not prepared":      {store: withSecret(t, fresh), want: []string{"older", "`idemd migrate up` with the same --store"}},
		"newer schema":      {store: withSecret(t, newer), want: []string{"newer", "upgrade"}},
		"read-only":         {store: withSecret(t, readOnly), want: []string{"read-only"}},
		"no rights":         {store: altered(t, ready, guest), want: []string{"permission denied", "GRANT"}},
		"no rights to make": {command: []string{"migrate", "up"}, store: altered(t, fresh, guest), want: []string{"permission denied", "GRANT"}},
		"migrate nowhere":   {command: []string{"migrate", "status"}, store: "postgres://u:" + secret + "@" + closed + "/db", want: []string{closed, "refused"}},
		"list as argument":  {command: []string{"migrate", "up", "host=h password=" + secret + " user=u"}, code: exitUsage, want: []string{"unexpected argument", "user=u"}},
		"two at, argument":  {command: []string{"migrate", "up", "postgres://u:x@" + secret + "@host/db"}, code: exitUsage, want: []string{"unexpected argument"}},
		"as an argument":    {command: []string{"migrate", "up", "postgres://u:" + secret + "@host/db"}, code: exitUsage, want: []string{"unexpected argument"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := test.command
			if args == nil {
				args = []string{"serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--log-level=error"}
			}
			r := run(t, append(append(args, "--store="+test.store), test.args...)...)
			r.fails(t, max(test.code, exitFailed), test.want...)
			if strings.Contains(r.stderr, secret) {
				t.Errorf("the password is shown: %s", r.stderr)
			}
		})
	}
	run(t, "migrate", "up").fails(t, exitUsage, "--store is missing")
	t.Setenv("IDEMD_STORE", withSecret(t, ready))
	run(t, "serve", "--data-dir="+t.TempDir()).fails(t, exitUsage, "IDEMD_STORE", "--data-dir", "both")
	_ = os.Unsetenv("IDEMD_STORE")
	run(t, "serve", "--region=eu", "--data-dir="+t.TempDir()).fails(t, exitUsage, "--region", "--store")
}

// TestExplain checks the advice for what the tests' server, which lets everyone in, never says.
func TestExplain(t *testing.T) {
	dsn := "postgres://u:" + secret + "@one,two:5433/db"
	f := &databaseFlags{Store: &dsn, Region: defaultRegion}
	for code, want := range map[string]string{
		"28P01": "check user and password",
		"25006": "can be written to",
		"53300": "max_connections",
		"57P03": "try again",
	} {
		cause := &pgconn.PgError{Code: code, Message: "so it is"}
		err := f.explain(errors.Join(errors.New("first"), cause))
		if text := err.Error(); !strings.HasPrefix(text, "--store: db at one:5432, two:5433 as u: so it is; ") || !strings.Contains(text, want) {
			t.Errorf("%s: %s", code, text)
		}
		if !errors.Is(err, cause) {
			t.Errorf("%s: the cause is lost", code)
		}
	}
	if text := f.explain(context.DeadlineExceeded).Error(); !strings.Contains(text, "no answer within 15s") {
		t.Error(text)
	}
}

// TestNotice checks that a missing bucket is told before claims need it.
func TestNotice(t *testing.T) {
	dsn := migrated(t)
	s, err := sqlstore.Open(t.Context(), dsn, sqlstore.Options{MaintainEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	notice := noticeOf(s)
	if text := notice(); text != "" {
		t.Errorf("of a whole store: %q", text)
	}
	execute(t, dsn, "DELETE FROM idem_buckets WHERE start_us > extract(epoch from now()) * 1000000")
	if _, err := s.Buckets(t.Context()); err != nil { // reads the registry anew
		t.Fatal(err)
	}
	if text := notice(); !strings.Contains(text, "no bucket idem_local_") {
		t.Errorf("without the next buckets: %q", text)
	}
}

func TestMigrate(t *testing.T) {
	dsn := withSecret(t, pgtest.Shared(t).NewDatabase(t))
	t.Setenv("IDEMD_STORE", dsn)
	for _, step := range []struct {
		command string
		code    int
		want    []string
	}{
		{"status", exitPending, []string{"older than this release", "schema        0", "pending       0001_begin", "pending       0002_members", "pending       0003_pages"}},
		{"status -o json", exitPending, []string{`{"incomplete":[],"pending":["0001_begin","0002_members","0003_pages"],"release":3,"schema":0}` + "\n"}},
		{"up", exitOK, []string{"migrated: 0001_begin, 0002_members, 0003_pages", "region    local"}},
		{"status", exitOK, []string{"up to date"}},
		{"status -o json", exitOK, []string{`{"incomplete":[],"pending":[],"release":3,"schema":3}` + "\n"}},
		{"up", exitOK, []string{"up to date: nothing was to be done"}},
	} {
		r := run(t, append([]string{"migrate"}, strings.Fields(step.command)...)...)
		out := r.stdout
		if r.code != step.code || r.stderr != "" {
			t.Errorf("migrate %s: exit code %d, want %d; %s", step.command, r.code, step.code, r.stderr)
		}
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("migrate %s does not say %q:\n%s", step.command, want, out)
			}
		}
		if strings.Contains(out, secret) {
			t.Errorf("migrate %s shows the password:\n%s", step.command, out)
		}
	}
	run(t, "migrate", "up", "--region=eu").ok(t) // another region's tables, beside
	bucket := olderBucket(t, dsn, "eu")
	run(t, "migrate", "status").ok(t)
	for output, want := range map[string]string{"text": "incomplete    " + bucket, "json": `"incomplete":["` + bucket + `"]`} {
		if r := run(t, "migrate", "status", "--region=eu", "-o", output); r.code != exitPending || !strings.Contains(r.stdout, want) || strings.HasPrefix(r.stdout, "up to date\n") {
			t.Errorf("migrate status with a bucket of an older release: exit code %d\n%s", r.code, r.stdout)
		}
	}
	run(t, "migrate", "up", "--region=eu").ok(t)
	run(t, "migrate", "status", "--region=eu").ok(t)
	s := serveOn(t, "--region=eu")
	s.run(t, "claim", "--id=a").ok(t)
}

// olderBucket takes from one of a region's buckets what an older release does not give it.
func olderBucket(t *testing.T, dsn, region string) (table string) {
	t.Helper()
	conn := pgtest.Dial(t, dsn)
	if err := conn.QueryRow(t.Context(), "SELECT min(relname) FROM pg_class WHERE relkind = 'r' AND relname ~ $1", "^idem_"+region+"_day_").Scan(&table); err != nil {
		t.Fatal(err)
	}
	execute(t, dsn, "ALTER TABLE "+table+" DROP COLUMN unsettled_since")
	return table
}

func TestMigratePrint(t *testing.T) {
	out := run(t, "migrate", "print", "--regions=eu,us").ok(t)
	for _, want := range []string{"CREATE TABLE IF NOT EXISTS idem_buckets", "CREATE TABLE IF NOT EXISTS idem_eu_day_0", "CREATE TABLE IF NOT EXISTS idem_us_day_0"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if out := run(t, "migrate", "print", "--dialect=cockroach", "--regions=eu").ok(t); !strings.Contains(out, `LOCALITY REGIONAL BY TABLE IN "eu"`) {
		t.Errorf("for CockroachDB:\n%s", out)
	}
	run(t, "migrate", "print", "--regions=eu,No").fails(t, exitUsage, `--regions: region "No"`)
	run(t, "migrate", "print", "--dialect=oracle").fails(t, exitUsage, "postgres")
}
