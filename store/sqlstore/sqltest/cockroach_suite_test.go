package sqltest_test

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"testing"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/sqltest"
	"github.com/idemd/idemd/store/storetest"
)

// mimic are databases that look to the store like CockroachDB: PostgreSQL behind proxies
// that answer in its place what only CockroachDB understands, and whose RELEASE SAVEPOINT
// cockroach_restart commits.
//
// So the tests on them show that the dialect sends what its documentation asks for, and that
// the store keeps the table over its transactions. They do not show that CockroachDB takes a
// statement, nor how it isolates transactions: only TestConformanceOnCockroach does.
type mimic struct {
	regions []string

	mu    sync.Mutex
	rules map[string][]*pgfault.Added // by what they are about
	last  *pgfault.Proxy
}

// release is the commit of CockroachDB's transactions.
var release = regexp.MustCompile(`^RELEASE SAVEPOINT cockroach_restart$`)

func (c *mimic) through(t testing.TB, dsn string) string {
	proxy := pgfault.New(t, dsn)
	proxy.DropParameter("default_transaction_use_follower_reads")
	rows := make([][]any, len(c.regions))
	for i, region := range c.regions {
		rows[i] = []any{region}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = proxy
	for what, rule := range map[string]pgfault.Rule{
		"version":   {Match: regexp.MustCompile(`^SELECT version\(\)$`), Do: pgfault.Answer("SELECT 1", []string{"version"}, []any{"CockroachDB CCL v25.4.0"})},
		"regions":   {Match: regexp.MustCompile(`^SELECT region FROM \[SHOW REGIONS FROM DATABASE\] ORDER BY region$`), Do: pgfault.Answer("SELECT", []string{"region"}, rows...)},
		"locality":  {Match: regexp.MustCompile(` LOCALITY REGIONAL BY TABLE IN "us-east1"$`), Do: pgfault.Rewrite("")},
		"split":     {Match: regexp.MustCompile(`^ALTER TABLE \S+ SPLIT AT VALUES \(x'10'\), `), Do: pgfault.Answer("ALTER TABLE", nil)},
		"zone":      {Match: regexp.MustCompile(`^ALTER TABLE \S+ CONFIGURE ZONE USING gc.ttlseconds = 600$`), Do: pgfault.Answer("CONFIGURE ZONE 1", nil)},
		"savepoint": {Match: regexp.MustCompile(`^SAVEPOINT cockroach_restart$`), Do: pgfault.Rewrite("$0")},
		"release":   {Match: release, Do: pgfault.Rewrite("COMMIT")},
	} {
		c.rules[what] = append(c.rules[what], proxy.Add(rule))
	}
	return proxy.DSN()
}

// sent is how often statements of a kind were sent, or prepared once and then sent.
func (c *mimic) sent(what string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rule := range c.rules[what] {
		n += rule.Fired()
	}
	return n
}

// cockroachOf returns databases of a region, and a factory of stores on them.
func cockroachOf(region string, regions ...string) (*mimic, storetest.Factory) {
	c := &mimic{regions: regions, rules: map[string][]*pgfault.Added{}}
	return c, sqltest.Through(region, c.through)
}

// TestCockroachDialectConforms plays all checks and a sample of the golden scripts and random
// runs that TestConformance plays on the other dialect, because most of it goes the same way.
func TestCockroachDialectConforms(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it asks one thing after the other, for long; 'make test' plays it")
	}
	t.Parallel()
	c, factory := cockroachOf("single")
	storetest.Run(t, storetest.Sample(t, 32, factory))
	c.sentOften(t, false)
}

// TestCockroachRegions plays a few scripts, as only tables are made in another way.
func TestCockroachRegions(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it asks one thing after the other, for long; 'make test' plays it")
	}
	t.Parallel()
	c, factory := cockroachOf("us-east1", "eu-west1", "us-east1", "us-west1")
	storetest.RunGolden(t, storetest.Sample(t, 16, factory))
	c.sentOften(t, true)
}

// sentOften checks that what only CockroachDB understands was sent again and again.
func (c *mimic) sentOften(t *testing.T, regional bool) {
	t.Helper()
	const often = 20
	buckets := c.sent("split")
	if buckets < often || c.sent("zone") != buckets {
		t.Errorf("%d times SPLIT AT and %d times CONFIGURE ZONE", buckets, c.sent("zone"))
	}
	if c.sent("savepoint") < often || c.sent("release") < often {
		t.Errorf("%d savepoints and %d releases", c.sent("savepoint"), c.sent("release"))
	}
	if localities := c.sent("locality"); regional && localities != buckets || !regional && localities != 0 {
		t.Errorf("%d of %d tables have a locality", localities, buckets)
	}
	if c.sent("version") < often || c.sent("regions") < often {
		t.Errorf("asked %d times for the version and %d times for the regions", c.sent("version"), c.sent("regions"))
	}
}

// faultAtRelease grants a key to a and then, with a fault at the next commit, to b.
func faultAtRelease(t *testing.T, fault pgfault.Action) (i *storetest.Instance, key store.Key, first, second *store.Granted) {
	t.Helper()
	c, factory := cockroachOf("single")
	i = factory(t)
	key = store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	first = granted(t, i, store.ClaimRequest{Key: key, AttemptID: "a"})
	i.Clock.Advance(store.DefaultLease)
	rule := c.last.Add(pgfault.Rule{Match: release, Times: 1, Do: fault})
	second = granted(t, i, store.ClaimRequest{Key: key, AttemptID: "b"})
	if rule.Fired() != 1 {
		t.Fatal("no commit met the fault")
	}
	return i, key, first, second
}

func granted(t *testing.T, i *storetest.Instance, req store.ClaimRequest) *store.Granted {
	t.Helper()
	answer, err := i.Claim(t.Context(), req)
	if err != nil || answer.Granted == nil {
		t.Fatalf("claim by %s: %+v, %v", req.AttemptID, answer, err)
	}
	return answer.Granted
}

// A transaction that must be run again is, and one of which it is not known whether it was
// committed is looked for: either way there is one takeover, and its holder learns its fence.
func TestCockroachFaultsAtRelease(t *testing.T) {
	for name, fault := range map[string]pgfault.Action{
		"run again":               pgfault.Fail("40001"),
		"unknown, and not done":   pgfault.Fail("40003"),
		"unknown, and done":       pgfault.FailAfter("40003"),
		"cancelled, and done":     pgfault.FailAfter("57014"),
		"connection lost after":   pgfault.ResetAfter(),
		"connection lost before":  pgfault.ResetBefore(),
		"node drains, not done":   pgfault.Fail("57P01"),
		"node drains, it is done": pgfault.FailAfter("57P01"),
	} {
		t.Run(name, func(t *testing.T) {
			i, key, first, second := faultAtRelease(t, fault)
			if second.AttemptNumber != 2 || second.Fence <= first.Fence || second.PreviousFence != first.Fence || !second.Unsettled {
				t.Errorf("granted first %+v, then %+v", first, second)
			}
			found, err := i.InspectRecord(t.Context(), key)
			if err != nil || found.Record.Fence != second.Fence || found.Record.AttemptID != "b" {
				t.Errorf("the record is %+v, %v", found.Record, err)
			}
			if n := len(found.Events); n != 1 || found.Events[0].Kind != store.EventTakeover {
				t.Errorf("events %+v", found.Events)
			}
			done := &store.Outcome{Body: []byte("done")}
			if _, err := i.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "b", Fence: second.Fence, Outcome: done}); err != nil {
				t.Error(err)
			}
		})
	}
}

// What an operator ordered is not ordered again when it may have been done.
func TestCockroachOrderThatMayBeDone(t *testing.T) {
	c, factory := cockroachOf("single")
	i := factory(t)
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	granted(t, i, store.ClaimRequest{Key: key, AttemptID: "a"})
	c.last.Add(pgfault.Rule{Match: release, Times: 1, Do: pgfault.FailAfter("40003")})
	order := store.ForceReleaseRequest{Key: key, AnyFence: true, Actor: "operator", Reason: "because"}
	if _, err := i.ForceRelease(context.WithoutCancel(t.Context()), order); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an order that may be done: %v", err)
	}
	found, err := i.InspectRecord(t.Context(), key)
	if err != nil || len(found.Events) != 1 || found.Events[0].Kind != store.EventForceReleased {
		t.Errorf("events %+v, %v", found.Events, err)
	}
}
