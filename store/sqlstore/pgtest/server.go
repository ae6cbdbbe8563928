// Package pgtest gives tests a real PostgreSQL: a server of their own in a temporary directory,
// reached through a socket in it, that ends with the test process however that one ends.
//
//	dsn := pgtest.Shared(t).NewDatabase(t) // one fast server for all tests of a package
//	s := pgtest.New(t, pgtest.Durable)     // a server of this test's own, to stop, restart and kill
package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Flavour says what of PostgreSQL's care for the disk a server keeps.
type Flavour string

// The flavours.
const (
	// Fast never waits for the disk: for everything that does not end the server.
	Fast Flavour = "fsync=off\nsynchronous_commit=off\nfull_page_writes=off\n"
	// Durable is PostgreSQL as it comes: for crashes, restarts and benchmarks.
	Durable Flavour = ""
)

// settings hold for every flavour. They are in postgresql.conf, so a test may override them by ALTER SYSTEM.
const settings = `
listen_addresses=''
max_connections=200
shared_buffers='16MB'
max_prepared_transactions=0
timezone='UTC'
log_timezone='UTC'
log_line_prefix='%m [%p] %d '
# In the data directory and not in /dev/shm, where a killed server would leave it.
dynamic_shared_memory_type=mmap
`

// Shutdown is how a server is stopped, in PostgreSQL's words.
type Shutdown syscall.Signal

// The ways to stop.
const (
	FastShutdown      = Shutdown(syscall.SIGINT)  // rolls back what is open and writes a checkpoint
	ImmediateShutdown = Shutdown(syscall.SIGQUIT) // without a checkpoint: the next start recovers
)

// patience bounds each wait for the server. It is far above what any of them takes.
const patience = time.Minute

// Server is a PostgreSQL server. Its methods that start and stop it are for one goroutine.
type Server struct {
	bin, dir  string // where the programs are; what is removed at the end
	watch     *watch
	main      *process // nil while stopped
	databases atomic.Int64
}

// New starts a server that ends with the test. Settings are lines of postgresql.conf.
func New(t testing.TB, flavour Flavour, settings ...string) *Server {
	t.Helper()
	s, err := newServer(flavour, settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	s.logOnFailure(t)
	return s
}

var shared = sync.OnceValues(func() (*Server, error) { return newServer(Fast, nil) })

// Shared is one fast server for all tests of this process, started by the first that asks. Do not stop it.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	s.logOnFailure(t)
	return s
}

func newServer(flavour Flavour, extra []string) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if s.dir, err = os.MkdirTemp(place(flavour), "idemd-pg-"); err != nil {
		return nil, err
	}
	if err := giveAway(s.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if s.watch, err = startWatch(bin, s.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	conf := settings + string(flavour) + strings.Join(extra, "\n") + "\n"
	if err := s.initialise(conf); err != nil {
		s.end()
		return nil, err
	}
	if err := s.start(); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// place is where a server's directory is made. What needs no disk is kept in memory if there is room:
// most of what making and dropping a database costs is hundreds of files. TMPDIR is for all of them.
func place(flavour Flavour) string {
	if os.Getenv("TMPDIR") != "" || flavour != Fast {
		return os.TempDir()
	}
	return cmp.Or(memory(), os.TempDir())
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }
func (s *Server) log() string  { return filepath.Join(s.dir, "log") }

func (s *Server) initialise(conf string) error {
	cmd := s.command("initdb", "-D", s.data(), "-U", "postgres", "--auth=trust", "--encoding=UTF8",
		"--locale=C", "--no-sync", "--no-instructions")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb in %s, which the user it runs as must be able to reach (see TMPDIR): %w\n%s", s.dir, err, out)
	}
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(conf + "unix_socket_directories='" + s.dir + "'\n")
	return errors.Join(err, f.Close())
}

// command is one of PostgreSQL's programs, away from the environment and the user of the test.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	return command(s.dir, filepath.Join(s.bin, name), args...)
}

func (s *Server) start() error {
	if s.main != nil {
		return errors.New("PostgreSQL runs already")
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.command("postgres", "-D", s.data())
	cmd.Stdout, cmd.Stderr = log, log
	if s.main, err = startProcess(cmd); err != nil {
		return err
	}
	if err := s.waitReady(); err != nil {
		s.kill()
		text, _ := os.ReadFile(s.log())
		return fmt.Errorf("PostgreSQL did not start: %w\n%s", err, text)
	}
	return nil
}

func (s *Server) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.main.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Start starts a server that was stopped or killed, and returns when it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Stop stops the server and returns when it has ended.
func (s *Server) Stop(t testing.TB, how Shutdown) {
	t.Helper()
	if err := s.stop(how); err != nil {
		t.Fatal(err)
	}
}

// Restart is Stop, then Start.
func (s *Server) Restart(t testing.TB, how Shutdown) {
	t.Helper()
	s.Stop(t, how)
	s.Start(t)
}

// Kill ends the server and all its backends by SIGKILL, at once.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.main == nil {
		t.Fatal("PostgreSQL does not run")
	}
	s.kill()
}

func (s *Server) stop(how Shutdown) error {
	if s.main == nil {
		return errors.New("PostgreSQL does not run")
	}
	if err := s.main.cmd.Process.Signal(syscall.Signal(how)); err != nil {
		return err
	}
	select {
	case <-s.main.ended:
		s.main = nil
		return nil
	case <-time.After(patience):
		return fmt.Errorf("PostgreSQL did not stop within %v", patience)
	}
}

func (s *Server) kill() {
	killFamily(s.main.cmd.Process)
	<-s.main.ended
	s.main = nil
}

// end stops the server and removes what it leaves. The watch would do so by itself, but later, and
// it is of the server's user.
func (s *Server) end() {
	if s.main != nil && s.stop(ImmediateShutdown) != nil {
		s.kill()
	}
	forgetSharedMemory(s.data())
	s.watch.end()
	_ = os.RemoveAll(s.dir) // the watch has, as far as it could
}

// DSN is the connection string of a database.
func (s *Server) DSN(database string) string {
	query := url.Values{"host": {s.dir}, "port": {"5432"}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: query.Encode()}).String()
}

// Socket is the path of the socket the server listens on.
func (s *Server) Socket() string { return filepath.Join(s.dir, ".s.PGSQL.5432") }

// NewDatabase makes an empty database, dropped at the test's end, and returns its connection string.
func (s *Server) NewDatabase(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", s.databases.Add(1))
	if err := execute(s.DSN("postgres"), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.main == nil {
			return
		}
		if err := execute(s.DSN("postgres"), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return s.DSN(name)
}

func execute(dsn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// logOnFailure shows what the server logged while a test ran that failed.
func (s *Server) logOnFailure(t testing.TB) {
	var from int64
	if info, err := os.Stat(s.log()); err == nil {
		from = info.Size()
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		f, err := os.Open(s.log())
		if err != nil {
			t.Logf("no log of PostgreSQL: %v", err)
			return
		}
		defer f.Close()
		text, err := io.ReadAll(io.NewSectionReader(f, from, 64<<10))
		t.Logf("PostgreSQL's log (first 64 KiB, err %v):\n%s", err, text)
	})
}
