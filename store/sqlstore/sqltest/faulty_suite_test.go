package sqltest_test

import (
	"context"
	"errors"
	"flag"
	"hash/fnv"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/sqltest"
	"github.com/idemd/idemd/store/storetest"
)

// weather is a proxy that does harm to a few percent of all statements, COMMIT included, while
// an operation is under way that its caller sends again.
type weather struct {
	proxy *pgfault.Proxy
	total *atomic.Int64

	mu    sync.Mutex
	seed  uint64
	under int // operations under way
	rules []*pgfault.Added
}

// harms are what may befall a statement, and how probably.
var harms = []struct {
	probability float64
	do          pgfault.Action
}{
	{0.01, pgfault.Fail("40001")},
	{0.005, pgfault.Fail("40003")},
	{0.005, pgfault.FailAfter("40003")},
	{0.005, pgfault.Fail("57014")},
	{0.005, pgfault.FailAfter("57014")},
	{0.005, pgfault.Fail("57P01")},
	{0.005, pgfault.FailAfter("57P01")},
	{0.005, pgfault.ResetBefore()},
	{0.005, pgfault.ResetAfter()},
}

func (w *weather) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under++; w.under > 1 {
		return
	}
	for _, harm := range harms {
		w.seed++
		w.rules = append(w.rules, w.proxy.Add(pgfault.Rule{Probability: harm.probability, Seed: w.seed, Do: harm.do}))
	}
}

func (w *weather) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under--; w.under > 0 {
		return
	}
	for _, rule := range w.rules {
		w.total.Add(int64(rule.Fired()))
		w.proxy.Remove(rule)
	}
	w.rules = nil
}

// persistent sends what is unavailable again, with the same attempt id, as client.Client does.
// Orders of operators are not sent again by anybody, and meet no faults here.
type persistent struct {
	store.Backend
	weather *weather
}

// tries is how often something is sent: that all of them fail means that it always does.
const tries = 100

func persistently[Q, A any](ctx context.Context, p *persistent, req Q, do func(context.Context, Q) (A, error)) (answer A, err error) {
	p.weather.begin()
	defer p.weather.end()
	for range tries {
		if answer, err = do(ctx, req); !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			break
		}
	}
	return answer, err
}

func (p *persistent) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return persistently(ctx, p, req, p.Backend.Claim)
}

// Renew is the one operation of a holder that the table answers otherwise when it is repeated:
// when the lease has come to the attempt's limit, there is nothing left to renew. So it was done.
func (p *persistent) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	before, unknown := p.Backend.InspectRecord(ctx, req.Key)
	answer, err := persistently(ctx, p, req, p.Backend.Renew)
	if unknown == nil && errors.Is(err, store.ErrAttemptTooLong) {
		if limit := before.Record.AttemptLimit; before.Record.LeaseEnd.Before(limit) {
			return store.RenewAnswer{LeaseExpiresAt: limit, LeaseRemaining: limit.Sub(before.Now)}, nil
		}
	}
	return answer, err
}

func (p *persistent) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	return persistently(ctx, p, req, p.Backend.Complete)
}

func (p *persistent) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	return persistently(ctx, p, req, p.Backend.Release)
}

func (p *persistent) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	return persistently(ctx, p, req, p.Backend.Lookup)
}

func (p *persistent) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	return persistently(ctx, p, key, p.Backend.InspectRecord)
}

func (p *persistent) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	return persistently(ctx, p, req, p.Backend.ListRecords)
}

func (p *persistent) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	return persistently(ctx, p, name, p.Backend.GetNamespace)
}

func (p *persistent) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return persistently(ctx, p, ns, p.Backend.CreateNamespace)
}

func (p *persistent) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return persistently(ctx, p, ns, p.Backend.UpdateNamespace)
}

var faultSeed = flag.Uint64("faults.seed", 1, "seed of the faults in TestConformanceUnderFaults")

// inBadWeather makes instances whose statements meet random faults, and counts these.
func inBadWeather(total *atomic.Int64) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		t.Helper()
		w := &weather{total: total, seed: seedOf(t.Name())}
		i := sqltest.Through("local", func(t testing.TB, dsn string) string {
			w.proxy = pgfault.New(t, dsn)
			return w.proxy.DSN()
		})(t)
		i.Backend = &persistent{Backend: i.Backend, weather: w}
		reopen := i.Reopen
		i.Reopen = func() {
			reopen()
			i.Backend = &persistent{Backend: i.Backend, weather: w}
		}
		return i
	}
}

// seedOf gives each test faults of its own.
func seedOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64() + *faultSeed
}

// TestConformanceUnderFaults plays a sample of the golden scripts and of the random runs, and
// all checks. What operators order and what maintains the buckets meets no faults.
func TestConformanceUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it asks one thing after the other, for long; 'make test' plays it")
	}
	t.Parallel()
	var total atomic.Int64
	storetest.Run(t, storetest.Sample(t, 40, inBadWeather(&total)))
	if total.Load() < 20 {
		t.Errorf("only %d faults", total.Load())
	}
	t.Logf("%d faults", total.Load())
}

// A lease that was renewed up to the attempt's limit, unknown to the holder: see persistent.Renew.
func TestRenewToTheLimitUnderFault(t *testing.T) {
	var proxy *pgfault.Proxy
	i := sqltest.Through("local", func(t testing.TB, dsn string) string {
		proxy = pgfault.New(t, dsn)
		return proxy.DSN()
	})(t)
	ns := store.Namespace{Name: "brief", Lease: store.MinLease, MaxAttempt: time.Minute, MaxLease: time.Minute}
	if _, err := i.CreateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	key := store.Key{Namespace: ns.Name, ID: "k"}
	holder := granted(t, i, store.ClaimRequest{Key: key, AttemptID: "a"})
	i.Clock.Advance(time.Millisecond)
	lost := proxy.Add(pgfault.Rule{Match: regexp.MustCompile("SET lease_end"), Times: 1, Do: pgfault.ResetAfter()})
	_, err := i.Renew(t.Context(), store.RenewRequest{Key: key, AttemptID: "a", Fence: holder.Fence, Lease: time.Minute})
	if lost.Fired() != 1 || !errors.Is(err, store.ErrAttemptTooLong) {
		t.Errorf("%d faults, %v", lost.Fired(), err)
	}
	found, err := i.InspectRecord(t.Context(), key)
	if err != nil || !found.Record.LeaseEnd.Equal(found.Record.AttemptLimit) {
		t.Errorf("lease until %v, %v", found.Record.LeaseEnd, err)
	}
}
