package pgtest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// holderVariable makes this test binary a process that starts a server, names its directory and
// postmaster on standard output, and waits.
const holderVariable = "PGTEST_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(holderVariable) != "" {
		hold()
	}
	os.Exit(m.Run())
}

func hold() {
	s, err := newServer(Fast, nil)
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString(s.dir + " " + strconv.Itoa(s.main.cmd.Process.Pid) + "\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func query[T any](t *testing.T, dsn, sql string) T {
	t.Helper()
	var value T
	if err := Dial(t, dsn).QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func TestDatabasesAreApart(t *testing.T) {
	s := Shared(t)
	one, two := s.NewDatabase(t), s.NewDatabase(t)
	Execute(t, Dial(t, one), "CREATE TABLE only_here ()")
	const find = "SELECT count(*) FROM pg_tables WHERE tablename = 'only_here'"
	if n := query[int](t, one, find); n != 1 {
		t.Errorf("the first database has %d tables, want 1", n)
	}
	if n := query[int](t, two, find); n != 0 {
		t.Errorf("the second database has %d tables, want 0", n)
	}
}

func TestDatabaseIsDroppedThoughInUse(t *testing.T) {
	s := Shared(t)
	var name string
	t.Run("user", func(t *testing.T) {
		dsn := s.NewDatabase(t)
		name = query[string](t, dsn, "SELECT current_database()")
		if _, err := pgx.Connect(t.Context(), dsn); err != nil { // left open
			t.Fatal(err)
		}
	})
	if n := query[int](t, s.DSN("postgres"), "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); n != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestFlavours(t *testing.T) {
	durable := New(t, Durable, "work_mem='3MB'")
	for _, c := range []struct {
		server        *Server
		setting, want string
	}{
		{Shared(t), "fsync", "off"},
		{Shared(t), "synchronous_commit", "off"},
		{Shared(t), "full_page_writes", "off"},
		{Shared(t), "max_connections", "200"},
		{Shared(t), "max_prepared_transactions", "0"},
		{Shared(t), "TimeZone", "UTC"},
		{durable, "fsync", "on"},
		{durable, "synchronous_commit", "on"},
		{durable, "full_page_writes", "on"},
		{durable, "work_mem", "3MB"},
	} {
		if got := query[string](t, c.server.DSN("postgres"), "SHOW "+c.setting); got != c.want {
			t.Errorf("%s is %s, want %s", c.setting, got, c.want)
		}
	}
}

func TestWhatWasCommittedOutlivesEveryEnd(t *testing.T) {
	s := New(t, Durable)
	dsn := s.NewDatabase(t)
	Execute(t, Dial(t, dsn), "CREATE TABLE ends (how text)")
	ends := map[string]func(){
		"fast":      func() { s.Restart(t, FastShutdown) },
		"immediate": func() { s.Restart(t, ImmediateShutdown) },
		"kill":      func() { s.Kill(t); s.Start(t) },
	}
	for how, end := range ends {
		conn := Dial(t, dsn)
		Execute(t, conn, "INSERT INTO ends VALUES ('"+how+"')")
		Execute(t, conn, "BEGIN")
		Execute(t, conn, "INSERT INTO ends VALUES ('never committed')")
		end()
		if _, err := conn.Exec(t.Context(), "COMMIT"); err == nil {
			t.Errorf("%s: a connection outlived the server", how)
		}
	}
	if got := query[string](t, dsn, "SELECT string_agg(how, ' ' ORDER BY how) FROM ends"); got != "fast immediate kill" {
		t.Errorf("found rows %q", got)
	}
}

func TestKillEndsEveryBackend(t *testing.T) {
	s := New(t, Fast)
	conn := Dial(t, s.DSN("postgres"))
	busy := make(chan error, 1)
	pid := conn.PgConn().PID()
	go func() { // a busy backend would not notice its postmaster's death by itself
		_, err := conn.Exec(context.Background(), "SELECT sum(i) FROM generate_series(1, 1e12) i")
		busy <- err
	}()
	const active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT sum%'"
	for query[int](t, s.DSN("postgres"), active) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the query did not start")
		}
	}
	s.Kill(t)
	if err := <-busy; err == nil {
		t.Error("the query succeeded")
	}
	waitGone(t, int(pid))
	if _, err := pgx.Connect(t.Context(), s.DSN("postgres")); err == nil {
		t.Error("a killed server answers")
	}
}

func TestStoppedServerSaysSo(t *testing.T) {
	s := New(t, Fast)
	s.Stop(t, FastShutdown)
	if err := s.stop(FastShutdown); err == nil || err.Error() != "PostgreSQL does not run" {
		t.Errorf("stopping twice: %v", err)
	}
	s.Start(t)
	if err := s.start(); err == nil || err.Error() != "PostgreSQL runs already" {
		t.Errorf("starting twice: %v", err)
	}
}

func TestBadSettingShowsTheLog(t *testing.T) {
	_, err := newServer(Fast, []string{"no_such_setting=1"})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("got %v, want the server's complaint", err)
	}
}

func TestDirectoryOutOfReachIsSaidAndRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root runs the server as another user")
	}
	temporary := t.TempDir()
	if err := os.Chmod(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	if _, err := newServer(Fast, nil); err == nil || !strings.Contains(err.Error(), "see TMPDIR") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestOnlyWhatNeedsNoDiskIsInMemory(t *testing.T) {
	t.Setenv("TMPDIR", "")
	if fast, want := place(Fast), cmp.Or(memory(), os.TempDir()); fast != want {
		t.Errorf("a fast server is in %s, want %s", fast, want)
	}
	if durable := place(Durable); durable != os.TempDir() {
		t.Errorf("a durable server is in %s, want %s", durable, os.TempDir())
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	if fast := place(Fast); fast != temporary {
		t.Errorf("with TMPDIR a fast server is in %s, want %s", fast, temporary)
	}
}

func TestEndLeavesNothing(t *testing.T) {
	for name, leave := range map[string]func(*Server){
		"running": func(*Server) {},
		"stopped": func(s *Server) { s.Stop(t, FastShutdown) },
		"killed":  func(s *Server) { s.Kill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			var s *Server
			var pid int
			t.Run("user", func(t *testing.T) {
				s = New(t, Fast)
				pid = s.main.cmd.Process.Pid
				leave(s)
			})
			if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v, want it gone", s.dir, err)
			}
			waitGone(t, pid)
		})
	}
}

func TestServerEndsWithItsProcess(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer) error{
		"exit": func(_ *exec.Cmd, input io.Closer) error { return input.Close() },
		"kill": func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Kill() },
		"quit": func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Signal(syscall.SIGQUIT) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), holderVariable+"=1")
			input, errIn := cmd.StdinPipe()
			output, errOut := cmd.StdoutPipe()
			if err := errors.Join(errIn, errOut, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(output).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			dir, pidText, _ := strings.Cut(strings.TrimSpace(line), " ")
			pid, err := strconv.Atoi(pidText)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(cmd, input); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed, on purpose
			waitGone(t, pid)
			waitFor(t, dir+" to be removed", func() bool {
				_, err := os.Stat(dir)
				return errors.Is(err, os.ErrNotExist)
			})
		})
	}
}

func TestMissingBinariesSayHowToGetThem(t *testing.T) {
	old := t.TempDir()
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n"
		if err := os.WriteFile(filepath.Join(old, program), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("IDEMD_POSTGRES_PATH", t.TempDir()+":"+old)
	if dir, err := findBinaries(); err == nil || !strings.Contains(err.Error(), "`make test` installs them") {
		t.Errorf("got %q, %v", dir, err)
	}
}

func TestCockroach(t *testing.T) {
	dsn := Cockroach(t)
	if got := query[string](t, dsn, "SELECT version()"); !strings.HasPrefix(got, "CockroachDB") {
		t.Errorf("%s is %s", cockroachDSN, got)
	}
}

// waitGone waits for a process to end; one that only waits to be buried counts as gone.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	waitFor(t, "process "+strconv.Itoa(pid)+" to end", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func waitFor(t *testing.T, what string, happened func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !happened() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
