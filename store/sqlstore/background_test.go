package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
)

type channelObserver struct {
	noObserver
	ahead chan int
}

func (o channelObserver) BucketsAhead(n int) {
	select {
	case o.ahead <- n:
	default:
	}
}

// opened is an open store of the rig, which does its background work, with a wall clock that
// shows the database's time as of the last set.
func (r *rig) opened(dsn string, every time.Duration) (*Store, channelObserver, func(us int64)) {
	r.t.Helper()
	observer := channelObserver{ahead: make(chan int, 1)}
	var wall atomic.Int64
	wall.Store(r.now().UnixMicro())
	opts := r.opts
	opts.Observer, opts.MaintainEvery = observer, every
	opts.Wall = func() time.Time { return timeOf(wall.Load()) }
	s, err := Open(r.t.Context(), dsn, opts)
	r.must(err)
	return s, observer, func(us int64) { r.set(us); wall.Store(us) }
}

// provided waits until a store has made by itself what it needs. How its operations fare is not asked:
// what fails while the clock leaps stays in its health for a while.
func (r *rig) provided(s *Store, observer channelObserver) {
	r.t.Helper()
	lacks := func() error {
		snap := s.catalog.copy.Load()
		if now := r.now().UnixMicro(); snap.now < now {
			return fmt.Errorf("the copy is of %v, and it is %v", timeOf(snap.now), timeOf(now))
		}
		return s.keeper().missing(snap)
	}
	late := time.After(time.Minute)       // all tests share a server, and what one holds open keeps the others waiting
	again := time.NewTicker(refreshEvery) // what holds it up may end after the last word of the observer
	defer again.Stop()
	for lacks() != nil {
		s.catalog.kick()
		select {
		case <-observer.ahead:
		case <-again.C:
		case <-late:
			r.t.Fatal("no buckets are made: ", lacks())
		}
	}
}

// An open store makes by itself what somebody finds missing, and Close ends all that it began.
func TestMissingBucketIsMadeInTheBackground(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s, observer, set := r.opened(r.dsn, time.Hour)
	set(r.now().Add(100 * time.Hour).UnixMicro())
	r.provided(s, observer)
	r.must(s.Close())
	wantEqual(t, "connections after Close", s.pool.Stat().TotalConns(), 0)
	r.must(s.Close())
}

// pageText is what reads a bucket that is retired.
var pageText = regexp.MustCompile(`^SELECT (r\.)?digest FROM idem_local_`)

// retiring is an open store whose retirement hangs, for the network is silent.
func (r *rig) retiring() (s *Store, observer channelObserver, set func(us int64)) {
	r.t.Helper()
	proxy := pgfault.New(r.t, r.dsn)
	hangs := proxy.Add(pgfault.Rule{Match: pageText, Do: pgfault.Stall(nil)})
	s, observer, set = r.opened(proxy.DSN(), 20*time.Millisecond)
	set(bucketAt(store.TierHour, began).dropAfter() + s.seal.window)
	hangs.Wait(r.t, 1)
	return s, observer, set
}

func TestBucketsAreMadeWhileARetirementHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s, observer, set := r.retiring()
	set(r.now().Add(3 * time.Hour).UnixMicro())
	r.provided(s, observer)
	r.must(s.Close())
}

// Close leaves the key of maintenance to others at once.
func TestCloseWhileARetirementHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	other := r.replica()
	s, _, _ := r.retiring()
	r.catchUp(other)
	_, ok, err := other.lockMaintenance(t.Context())
	r.must(err)
	wantEqual(t, "another retires meanwhile", ok, false)
	r.must(s.Close())
	_, ok, err = other.lockMaintenance(t.Context())
	r.must(err)
	wantEqual(t, "another may retire after Close", ok, true)
}

// A statement on whole tables ends when the network is silent.
func TestDefinitionOfASilentDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	proxy := pgfault.New(t, r.dsn)
	proxy.Add(pgfault.Rule{Match: regexp.MustCompile("^(SELECT|VALUES|TABLE) "), Do: pgfault.Stall(nil)})
	pool, err := pgxpool.New(t.Context(), proxy.DSN())
	r.must(err)
	defer pool.Close()
	for name, send := range map[string]func(definer) error{
		"exec":    func(d definer) error { _, err := d.Exec(t.Context(), "SELECT 1"); return err },
		"row":     func(d definer) error { return d.QueryRow(t.Context(), "VALUES (1)").Scan(new(int)) },
		"collect": func(d definer) error { _, err := d.collect(t.Context(), "TABLE idem_schema"); return err },
	} {
		if err := define(t.Context(), pool, 200*time.Millisecond, send); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lines are what is logged.
type lines chan string

func (l lines) Write(b []byte) (int, error) { l <- string(b); return len(b), nil }

// Why the database does not answer is in the log, once, and not only that it does not.
func TestCatalogTroubleIsLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	logged := make(lines, 100)
	s := r.replica()
	s.catalog.logger = slog.New(slog.NewTextHandler(logged, nil))
	r.exec("ALTER TABLE idem_namespaces RENAME TO away")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.catalog.run(ctx); close(ended) }()
	s.catalog.kick()
	if line := <-logged; !strings.Contains(line, "level=WARN") || !strings.Contains(line, `relation \"idem_namespaces\" does not exist`) {
		t.Errorf("logged: %s", line)
	}
	for range 3 {
		s.catalog.kick()
	}
	cancel()
	<-ended
	wantEqual(t, "further lines", len(logged), 0)
}

// Whoever asks while the database is silent waits no longer than he wants to, and leaves
// nothing behind that others would wait for.
func TestCatalogOfASilentDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	proxy := pgfault.New(t, r.dsn)
	r.dsn = proxy.DSN()
	s := r.replica()
	release := make(chan struct{})
	defer close(release)
	stalled := proxy.Add(pgfault.Rule{Match: regexp.MustCompile("FROM idem_clock"), Times: 1, Do: pgfault.Stall(release)})
	impatient, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- s.catalog.refresh(impatient) }()
	stalled.Wait(t, 1)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	r.must(s.catalog.refresh(t.Context()))
}
