package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// stage is a database whose clock a test sets, and in which it holds statements: what the
// tests of the protocol need to make two transactions overlap on purpose.
//
// Its clock runs on by itself and can be moved while nothing is under way, or while what is
// under way is held where the passing of time is what the test is about. A transaction's time
// is that of its first reading, as now() is that of its beginning.
type stage struct {
	testing.TB
	dsn    string
	timing Timing
	rate   float64
	began  time.Time
	conn   *pgx.Conn // for the test's own statements
	gates  *pgx.Conn // holds gates shut
	stores []*Store
	keys   int

	hung      bool         // a transaction is held that the seal waits for
	shifted   atomic.Int64 // by how much the clock was moved
	wallAhead atomic.Int64 // how far the replicas' wall clocks are ahead of it
}

// stageSQL: idemd.skew puts a session's clock off. idemd.gate names the gate at which a
// session's statements wait inside, between their snapshot and their first write, while the
// test holds it; idemd.late says that the running time is read behind the gate. With
// idemd.dawdle some wait there by themselves, that many seconds at most.
const stageSQL = `
CREATE SEQUENCE stage_shift MINVALUE -9000000000000000 START 0;
SELECT setval('stage_shift', 0);
CREATE FUNCTION stage_clock(moment timestamptz) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN moment + (moment - timestamptz '%[1]s') * (%[2]f - 1)
    + (SELECT last_value FROM stage_shift) * interval '1 microsecond'
    + coalesce(nullif(current_setting('idemd.skew', true), ''), '0')::interval;
END $$;
CREATE FUNCTION stage_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE fixed text := current_setting('idemd.now', true);
BEGIN
  IF coalesce(fixed, '') = '' THEN
    fixed := stage_clock(now())::text;
    PERFORM set_config('idemd.now', fixed, true);
  END IF;
  RETURN fixed::timestamptz;
END $$;
CREATE FUNCTION stage_running() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  gate int := coalesce(nullif(current_setting('idemd.gate', true), ''), '0')::int;
  quarter int := floor(extract(epoch from stage_now()) / 900)::int;
  running timestamptz := stage_clock(clock_timestamp());
  patience text;
  longest float := coalesce(nullif(current_setting('idemd.dawdle', true), ''), '0')::float;
BEGIN
  IF random() < 4 * longest THEN
    PERFORM pg_sleep(random() * longest);
  END IF;
  IF gate <> 0 THEN
    -- A gate is no row that somebody holds: it is waited for however long it is shut.
    patience := current_setting('lock_timeout');
    PERFORM set_config('lock_timeout', '0', true);
    PERFORM pg_advisory_lock_shared(gate, quarter);
    PERFORM pg_advisory_unlock_shared(gate, quarter);
    PERFORM set_config('lock_timeout', patience, true);
    IF coalesce(current_setting('idemd.late', true), '') <> '' THEN
      RETURN stage_clock(clock_timestamp());
    END IF;
  END IF;
  RETURN running;
END $$;
`

func newStage(t testing.TB, timing Timing) *stage {
	return newStageOn(t, pgtest.Shared(t).NewDatabase(t), timing, 1)
}

func newStageOn(t testing.TB, dsn string, timing Timing, rate float64) *stage {
	t.Helper()
	g := &stage{TB: t, dsn: dsn, timing: timing, rate: rate, began: time.Now(), conn: dial(t, dsn), gates: dial(t, dsn)}
	execute(t, g.conn, "SET TimeZone = 'UTC'")
	execute(t, g.conn, fmt.Sprintf(stageSQL, g.began.UTC().Format("2006-01-02 15:04:05.999999+00"), rate))
	// A quarter of an hour that has just begun to be past the window of any timing.
	now := g.now()
	g.shift(bucketAt(store.TierHour, now).next().start + (6 * time.Minute).Microseconds() - now)
	m, err := NewMigrator(t.Context(), dsn, g.options())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *stage) options() Options {
	return Options{
		Timing: g.timing, MaintainEvery: -1, MaxBatch: 512, Wall: g.wall,
		Monotonic: func() time.Duration { return time.Duration(float64(time.Since(g.began)) * g.rate) },
		Clock:     SQLClock{Now: "stage_now()", Running: "stage_running()", Rate: g.rate},
	}
}

// wall is the replicas' wall clock.
func (g *stage) wall() time.Time { return timeOf(g.estimate() + g.wallAhead.Load()) }

// estimate is the stage's clock, as long as the machine's goes evenly.
func (g *stage) estimate() int64 {
	now := time.Now()
	faster := float64(now.Sub(g.began)) * (g.rate - 1)
	return now.Add(time.Duration(faster)).UnixMicro() + g.shifted.Load()
}

// with are run-time parameters of a store's sessions.
func with(dsn string, settings ...string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	query := u.Query()
	for i := 0; i < len(settings); i += 2 {
		query.Set(settings[i], settings[i+1])
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}

// open opens a store of this stage with run-time parameters of its sessions.
func (g *stage) open(settings ...string) *Store { return g.openAt(with(g.dsn, settings...)) }

// proxied opens a store behind a proxy.
func (g *stage) proxied(settings ...string) (*Store, *pgfault.Proxy) {
	g.Helper()
	p := pgfault.New(g.TB, with(g.dsn, settings...))
	return g.openAt(p.DSN()), p
}

func (g *stage) openAt(dsn string) *Store {
	g.Helper()
	s := open(g.TB, dsn, g.options())
	g.Cleanup(func() { closeStore(g.TB, s) })
	g.stores = append(g.stores, s)
	if len(g.stores) == 1 {
		for name, policy := range map[string]store.LapsePolicy{"hour": store.Takeover, "hold": store.Hold} {
			ns := store.Namespace{Name: name, Retention: time.Hour, Tier: store.TierHour, LapsePolicy: policy}
			if _, err := s.CreateNamespace(g.Context(), ns); err != nil {
				g.Fatal(err)
			}
		}
	}
	if err := s.catalog.refresh(g.Context()); err != nil {
		g.Fatal(err)
	}
	return s
}

// now is the stage's clock.
func (g *stage) now() (us int64) {
	g.Helper()
	if err := g.conn.QueryRow(context.WithoutCancel(g.Context()), "SELECT (extract(epoch from stage_clock(clock_timestamp())) * 1000000)::int8").Scan(&us); err != nil {
		g.Fatal(err)
	}
	return us
}

func (g *stage) shift(us int64) {
	g.Helper()
	g.shifted.Add(us)
	execute(g.TB, g.conn, "SELECT setval('stage_shift', (SELECT last_value FROM stage_shift) + $1)", us)
}

func (g *stage) bucket() bucketID { return bucketAt(store.TierHour, g.now()) }

// step lets time pass in which the replicas do their duties: all have the buckets and have
// seen the clock, and old transactions are known to have ended, if they have.
func (g *stage) step(d time.Duration) {
	g.Helper()
	g.shift(d.Microseconds())
	g.settle()
	if !g.hung {
		g.sealed()
	}
}

// stepTo is step to an instant.
func (g *stage) stepTo(us int64) {
	g.Helper()
	g.step(time.Duration(us-g.now()) * time.Microsecond)
}

// nearlyAt steps to a moment before an instant, so that all of that time is left.
func (g *stage) nearlyAt(us int64, left time.Duration) {
	g.Helper()
	g.stepTo(us - (10 * time.Second).Microseconds())
	g.shift(us - left.Microseconds() - g.now())
}

func (g *stage) settle() {
	g.Helper()
	for i, s := range g.stores {
		if s.closed() != nil {
			continue
		}
		if err := s.catalog.refresh(g.Context()); err != nil {
			g.Fatal(err)
		}
		if i == 0 {
			if err := s.keeper().createAhead(g.Context()); err != nil {
				g.Fatal(err)
			}
		}
		if _, err := s.seal.advance(g.Context()); err != nil {
			g.Fatal(err)
		}
	}
}

// sealed waits until a store knows that all transactions from before now have ended.
func (g *stage) sealed() {
	g.Helper()
	for _, s := range g.stores {
		g.eventually("the seal is reached", func() bool {
			pending, err := s.seal.advance(g.Context())
			return err == nil && !pending
		})
	}
}

// eventually waits for something that happens by itself.
func (g *stage) eventually(what string, happened func() bool) {
	g.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(30 * time.Second); !happened(); <-ticker.C {
		if time.Now().After(deadline) {
			g.Fatalf("waited for long: %s", what)
		}
	}
}

// past waits until the stage's clock, ahead by skew, has passed an instant.
func (g *stage) past(us int64, skew time.Duration) {
	g.Helper()
	g.eventually("the clock passes", func() bool { return g.now()+skew.Microseconds() > us })
}

// shut closes a gate for statements of two quarters of an hour, and opens it again.
func (g *stage) shut(gate int, quarters ...bucketID) (open func()) {
	g.Helper()
	for _, b := range quarters {
		execute(g.TB, g.gates, "SELECT pg_advisory_lock($1, $2)", gate, quarterOf(b))
	}
	return sync.OnceFunc(func() {
		for _, b := range quarters {
			execute(g.TB, g.gates, "SELECT pg_advisory_unlock($1, $2)", gate, quarterOf(b))
		}
	})
}

func quarterOf(b bucketID) int { return int(b.start / (15 * time.Minute).Microseconds()) }

// held is how many statements of a quarter of an hour wait at a gate.
func (g *stage) held(gate int, b bucketID) (n int) {
	g.Helper()
	err := g.conn.QueryRow(g.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = $1 AND objid = $2`, gate, quarterOf(b)).Scan(&n)
	if err != nil {
		g.Fatal(err)
	}
	return n
}

// key is a fresh key in a namespace of tier hour.
func (g *stage) key() store.Key { return g.keyIn("hour") }

func (g *stage) keyIn(namespace string) store.Key {
	g.keys++
	return store.Key{Namespace: namespace, ID: fmt.Sprintf("key-%d", g.keys)}
}

func claimOf(key store.Key, attempt string) store.ClaimRequest {
	return store.ClaimRequest{Key: key, AttemptID: attempt, Fingerprint: store.Fingerprint{Version: 1, Digest: "fp"}}
}

// claimed is the answer of a Claim on its way.
type claimed struct {
	store.ClaimAnswer
	err error
}

// claim sends a Claim and does not wait for the answer.
func (g *stage) claim(s *Store, req store.ClaimRequest) <-chan claimed {
	done := make(chan claimed, 1)
	go func() {
		answer, err := s.Claim(g.Context(), req)
		done <- claimed{answer, err}
	}()
	return done
}

// patiently claims until the store is available.
func (g *stage) patiently(s *Store, req store.ClaimRequest) (got claimed) {
	g.Helper()
	g.eventually("the store is available", func() bool {
		got = <-g.claim(s, req)
		return !errors.Is(got.err, store.ErrUnavailable)
	})
	return got
}

// granted claims and must be granted.
func (g *stage) granted(s *Store, req store.ClaimRequest) *store.Granted {
	g.Helper()
	answer, err := s.Claim(g.Context(), req)
	if err != nil || answer.Granted == nil {
		g.Fatalf("claim of %s by %s: %+v, %v; want granted", req.Key.ID, req.AttemptID, answer, err)
	}
	return answer.Granted
}

// inProgress claims and must not be granted, because another attempt holds the key.
func (g *stage) inProgress(s *Store, req store.ClaimRequest) {
	g.Helper()
	g.mustBeInProgress(<-g.claim(s, req))
}

func (g *stage) mustBeInProgress(got claimed) {
	g.Helper()
	if got.err != nil || got.InProgress == nil {
		g.Fatalf("%s; want in progress", describe(got))
	}
}

func (g *stage) mustBeGranted(got claimed) *store.Granted {
	g.Helper()
	if got.err != nil || got.Granted == nil {
		g.Fatalf("%s; want granted", describe(got))
	}
	return got.Granted
}

func describe(c claimed) string {
	switch {
	case c.err != nil:
		return fmt.Sprintf("refused: %v (%v)", c.err, errors.Unwrap(c.err))
	case c.Granted != nil:
		return fmt.Sprintf("granted: %+v", *c.Granted)
	case c.InProgress != nil:
		return fmt.Sprintf("in progress: %+v", *c.InProgress)
	case c.Completed != nil:
		return fmt.Sprintf("completed: %+v", *c.Completed)
	}
	return "unresolved"
}

func (g *stage) complete(s *Store, key store.Key, attempt string, fence int64, body string) error {
	_, err := s.Complete(g.Context(), store.CompleteRequest{Key: key, AttemptID: attempt, Fence: fence, Outcome: &store.Outcome{Body: []byte(body)}})
	return err
}

func (g *stage) release(s *Store, key store.Key, attempt string, fence int64, effect store.Effect) {
	g.Helper()
	if _, err := s.Release(g.Context(), store.ReleaseRequest{Key: key, AttemptID: attempt, Fence: fence, Effect: effect}); err != nil {
		g.Fatal(err)
	}
}

func (g *stage) lookup(s *Store, key store.Key) (store.LookupAnswer, error) {
	return s.Lookup(g.Context(), store.LookupRequest{Key: key, Fingerprint: store.Fingerprint{Version: 1, Digest: "fp"}})
}

// place is a row of a key in a bucket.
type place struct {
	bucket bucketID
	state  int
	fence  int64
}

// places are all rows of a key, markers included, oldest bucket first.
func (g *stage) places(key store.Key) []place {
	g.Helper()
	var places []place
	digest := key.Digest()
	for _, b := range g.tables() {
		p := place{bucket: b}
		err := g.conn.QueryRow(g.Context(), "SELECT state, fence FROM "+b.table("local")+" WHERE digest = $1", digest[:]).Scan(&p.state, &p.fence)
		switch {
		case err == nil:
			places = append(places, p)
		case !errors.Is(err, pgx.ErrNoRows):
			g.Fatal(err)
		}
	}
	return places
}

// rows are the rows of a key that are not markers.
func (g *stage) rows(key store.Key) []place {
	g.Helper()
	var rows []place
	for _, p := range g.places(key) {
		if p.state != stateMoved {
			rows = append(rows, p)
		}
	}
	return rows
}

// tables are the buckets of tier hour that have a table, oldest first.
func (g *stage) tables() []bucketID {
	g.Helper()
	rows, err := g.conn.Query(g.Context(), "SELECT start_us FROM idem_buckets WHERE tier = $1 ORDER BY start_us", store.TierHour)
	if err != nil {
		g.Fatal(err)
	}
	starts, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		g.Fatal(err)
	}
	buckets := make([]bucketID, len(starts))
	for i, start := range starts {
		buckets[i] = bucketID{store.TierHour, start}
	}
	return buckets
}

// one checks that a key has one row, which is where its fence says.
func (g *stage) oneRow(key store.Key) place {
	g.Helper()
	rows := g.rows(key)
	if len(rows) != 1 || bucketAt(store.TierHour, rows[0].fence) != rows[0].bucket {
		g.Fatalf("key %s has the rows %+v (all: %+v); want one, in the bucket of its fence", key.ID, rows, g.places(key))
	}
	return rows[0]
}

// mark puts a marker for a key into a bucket, as a refused claim leaves it behind.
func (g *stage) mark(b bucketID, key store.Key) {
	g.Helper()
	digest := key.Digest()
	execute(g.TB, g.conn, "INSERT INTO "+b.table("local")+" (digest, state) VALUES ($1, 4)", digest[:])
}

// dam holds back a coalescer's batches until it is opened: what comes meanwhile then goes in
// one batch.
func dam[Q, A any](c *coalescer[Q, A]) (open func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += batchesAtOnce
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running -= batchesAtOnce; c.waiting.Len() > 0 {
			c.running++
			c.ended.Go(c.work)
		}
	})
}

func waitingIn[Q, A any](c *coalescer[Q, A]) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting.Len()
}

// Statements, by their text.
var (
	claimText  = regexp.MustCompile(`RETURNING digest, granted_at`)
	markerText = regexp.MustCompile(`\(digest, state\)`)
	moveText   = regexp.MustCompile(`^UPDATE \S+ AS r SET state = 4`)
	insertText = regexp.MustCompile(`(?s)^INSERT INTO \S+ \(digest, key.*\nSELECT \$1::bytea`)
	lockText   = regexp.MustCompile(`FOR UPDATE OF r`)
	findText   = regexp.MustCompile(`^SELECT \(-1\)::int4`)
	timeText   = regexp.MustCompile(`^SELECT round\(extract\(epoch from stage_now`)
	commitText = regexp.MustCompile(`(?i)^commit`)
)

// stall holds a store's next statement of a kind before the server executes it: its
// transaction has its time, and no snapshot yet. Held waits until it is held.
func stall(t testing.TB, p *pgfault.Proxy, what *regexp.Regexp) (held, resume func()) {
	until := make(chan struct{})
	rule := p.Add(pgfault.Rule{Match: what, Times: 1, Do: pgfault.Stall(until)})
	return func() { t.Helper(); rule.Wait(t, 1) }, sync.OnceFunc(func() { close(until) })
}

// off puts a replica's own idea of the database's clock off.
func off(s *Store, by time.Duration) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.read += by.Microseconds()
}
