package sqlstore

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

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

// An open store makes by itself what somebody finds missing, and Close ends all that it began.
func TestMissingBucketIsMadeInTheBackground(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	observer := channelObserver{ahead: make(chan int, 1)}
	opts := r.opts
	opts.Observer, opts.MaintainEvery, opts.Wall = observer, time.Hour, time.Now
	s, err := Open(t.Context(), r.dsn, opts)
	r.must(err)
	r.advance(100 * time.Hour)
	for s.catalog.copy.Load().now < r.now().UnixMicro() || s.Health(t.Context()) != nil {
		s.catalog.kick()
		<-observer.ahead
	}
	r.must(s.Close())
	wantEqual(t, "connections after Close", s.pool.Stat().TotalConns(), 0)
	r.must(s.Close())
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
