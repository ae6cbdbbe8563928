package sqlstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// stressRate lets a bucket of a quarter of an hour pass in six seconds.
const stressRate = 150

// Under it a statement may run 267 ms of real time, and the window lasts 600 ms.
var stressTiming = Timing{MaxStatement: 40 * time.Second, MaxOffset: 10 * time.Second}

// Replicas with clocks apart, workers that claim, renew, complete, release and go away, callers
// that give up, connections that stall and break, sessions that are killed and cancelled, while
// buckets pass every six seconds and maintenance moves and drops them. What was answered must
// be a history that keeps the promises. IDEMD_STRESS is how long.
func TestStressAtBucketEnds(t *testing.T) {
	length := 17 * time.Second
	if testing.Short() {
		length = 11 * time.Second
	}
	if text := os.Getenv("IDEMD_STRESS"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	r := newStress(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	for id := range 16 {
		running.Go(func() { r.work(ctx, id) })
	}
	running.Go(func() { r.harm(ctx) })
	running.Go(func() { r.keep(ctx) })
	boundaries := int(length / (6 * time.Second))
	for began := time.Now(); time.Since(began) < length || len(r.tooFew(boundaries)) > 0 && time.Since(began) < 5*length; {
		pause(ctx, 100*time.Millisecond) // a busy machine does less in the time
	}
	cancel()
	running.Wait()
	r.proxyA.Clear()
	r.proxyB.Clear()
	r.history.check(t)
	r.checkRows()
	t.Logf("%d claims (%d granted, %d unavailable or given up), %d raced at %d buckets' ends, %d takeovers, %d moves, %d completed, %d replays; harm: %d",
		r.claims.Load(), len(r.history.grants), r.unknown.Load(), r.raced.Load(), boundaries, r.history.takeovers, r.history.moves, len(r.history.outcomes), r.history.replays, r.harmed.Load())
	for _, what := range r.tooFew(boundaries) {
		t.Errorf("too few %s for %d buckets' ends", what, boundaries)
	}
}

// tooFew says of what there was too little for so many ends of buckets.
func (r *stress) tooFew(boundaries int) (few []string) {
	r.history.mu.Lock()
	defer r.history.mu.Unlock()
	enough := 1
	if testing.Short() {
		enough = 5 // under the race detector, beside others, a fifth of it is done
	}
	for what, n := range map[string]int{
		"claims raced at a bucket's end": int(r.raced.Load()) * enough / 8, "takeovers": r.history.takeovers * enough / 10,
		"moves": r.history.moves * enough / 3, "replays": r.history.replays * enough / 10, "harm": int(r.harmed.Load()) * enough / 20,
	} {
		if n < boundaries {
			few = append(few, what)
		}
	}
	return few
}

type stress struct {
	*stage
	replicas       []*Store
	proxyA, proxyB *pgfault.Proxy
	history        history
	serial         atomic.Int64

	claims, unknown, raced, harmed atomic.Int64
}

func newStress(t *testing.T) *stress {
	r := &stress{stage: newStageOn(t, pgtest.New(t, pgtest.Fast).NewDatabase(t), stressTiming, stressRate)}
	r.history.byID = map[string]*grant{}
	r.history.outcomes = map[store.Key]outcome{}
	a, proxyA := r.proxied("idemd.skew", "4s", "idemd.dawdle", "0.1")
	b, proxyB := r.proxied("idemd.skew", "-4s", "default_transaction_isolation", "serializable")
	r.proxyA, r.proxyB = proxyA, proxyB
	r.replicas = []*Store{a, b, r.open("idemd.skew", "-2s", "idemd.dawdle", "0.15"), r.open("idemd.skew", "2s")}
	r.wallAhead.Store(time.Hour.Microseconds())
	return r
}

// sinceEnd is how far the nearest end of a bucket is, in real time; negative before it.
func (r *stress) sinceEnd() (since time.Duration, end int64) {
	now := r.estimate()
	b := bucketAt(store.TierHour, now)
	end = b.start
	if now-b.start > b.width()/2 {
		end = b.end()
	}
	return time.Duration((now-end)*1000) / stressRate, end
}

// pick is a key: near a bucket's end mostly one of those that all race for there, else one that
// has been at work for some time.
func (r *stress) pick(random *rand.Rand) store.Key {
	since, end := r.sinceEnd()
	if since > -250*time.Millisecond && since < 600*time.Millisecond && random.IntN(10) < 8 {
		// Another few keys every 100 ms, so that there are fresh ones at the very end.
		return store.Key{Namespace: "hour", ID: fmt.Sprintf("end-%d-%d-%d", end, since.Milliseconds()/100, random.IntN(12))}
	}
	generation := r.estimate() / (20 * time.Minute).Microseconds()
	return store.Key{Namespace: "hour", ID: fmt.Sprintf("key-%d-%d", generation, random.IntN(150))}
}

// work claims keys and does with them what holders do.
func (r *stress) work(ctx context.Context, id int) {
	random := rand.New(rand.NewPCG(uint64(id), uint64(time.Now().UnixNano())))
	for ctx.Err() == nil {
		s := r.replicas[random.IntN(len(r.replicas))]
		attempt := fmt.Sprintf("%d-%d", id, r.serial.Add(1))
		req := claimOf(r.pick(random), attempt)
		req.Lease = time.Duration(20+random.IntN(100)) * time.Second // 130 to 800 ms
		if random.IntN(4) == 0 {
			req.IntentTime = timeOf(r.estimate()).Add(30 * time.Minute) // in a transaction of its own
		}
		grant := r.claimSome(ctx, s, req, random)
		if grant == nil {
			continue
		}
		if random.IntN(2) == 0 {
			s = r.replicas[random.IntN(len(r.replicas))]
		}
		r.act(ctx, s, req.Key, attempt, grant, random)
	}
}

// caller is a caller's context: every fifth gives up soon.
func caller(ctx context.Context, random *rand.Rand) (context.Context, context.CancelFunc) {
	patience := 3 * time.Second
	if random.IntN(5) == 0 {
		patience = time.Duration(1+random.IntN(20)) * time.Millisecond
	}
	return context.WithTimeout(context.WithoutCancel(ctx), patience)
}

// claimSome claims, and sends it again once or twice if it is not known what became of it.
func (r *stress) claimSome(ctx context.Context, s *Store, req store.ClaimRequest, random *rand.Rand) *grant {
	for range 1 + random.IntN(3) {
		r.claims.Add(1)
		before, _ := r.sinceEnd()
		sent := time.Now()
		patient, cancel := caller(ctx, random)
		answer, err := s.Claim(patient, req)
		cancel()
		if after, _ := r.sinceEnd(); before < 0 && after >= 0 || err == nil && answer.Granted != nil && after < 600*time.Millisecond && after >= 0 {
			r.raced.Add(1)
		}
		if g := r.history.claimed(req, answer, err, sent); g != nil || err == nil {
			return g
		}
		r.unknown.Add(1)
	}
	return nil
}

// act ends an attempt, or leaves it to lapse.
func (r *stress) act(ctx context.Context, s *Store, key store.Key, attempt string, g *grant, random *rand.Rand) {
	pause(ctx, time.Duration(random.IntN(120))*time.Millisecond)
	patient, cancel := caller(ctx, random)
	defer cancel()
	if random.IntN(4) == 0 {
		renewed, err := s.Renew(patient, store.RenewRequest{Key: key, AttemptID: attempt, Fence: g.fence, Lease: time.Minute})
		if err == nil {
			r.history.renewed(g, renewed.LeaseExpiresAt)
		}
	}
	complete := func(attempt string, fence int64, body string) (store.CompleteAnswer, error) {
		return s.Complete(patient, store.CompleteRequest{Key: key, AttemptID: attempt, Fence: fence, Outcome: &store.Outcome{Body: []byte(body)}})
	}
	switch random.IntN(10) {
	case 0, 1:
		r.history.ending(g)
		if answer, err := complete(attempt, g.fence, attempt); err == nil {
			r.history.completed(key, g, attempt, answer)
		}
	case 2, 3, 4:
		r.history.ending(g)
		_, _ = s.Release(patient, store.ReleaseRequest{Key: key, AttemptID: attempt, Fence: g.fence, Effect: store.EffectNone})
	case 5:
		r.history.ending(g)
		_, _ = s.Release(patient, store.ReleaseRequest{Key: key, AttemptID: attempt, Fence: g.fence, Effect: store.EffectUnknown})
	case 6:
		if _, err := complete(attempt, g.fence-1, "forged"); err == nil {
			r.Errorf("key %s was completed with fence %d instead of %d", key.ID, g.fence-1, g.fence)
		}
	case 7:
		if _, err := complete("forger", g.fence, "forged"); err == nil {
			r.Errorf("key %s was completed by another attempt", key.ID)
		}
	}
}

// harm does what networks, servers and operators do.
func (r *stress) harm(ctx context.Context) {
	conn := dial(r.TB, r.dsn)
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	texts := []*regexp.Regexp{claimText, markerText, moveText, insertText, lockText, commitText, findText}
	for ctx.Err() == nil {
		pause(ctx, time.Duration(20+random.IntN(60))*time.Millisecond)
		proxy := r.proxyA
		if random.IntN(2) == 0 {
			proxy = r.proxyB
		}
		what := texts[random.IntN(len(texts))]
		r.harmed.Add(1)
		switch random.IntN(8) {
		case 0:
			r.signal(conn, "pg_terminate_backend")
		case 1:
			r.signal(conn, "pg_cancel_backend")
		case 2:
			proxy.Add(pgfault.Rule{Match: what, Times: 1, Do: pgfault.ResetAfter()})
		case 3:
			proxy.Add(pgfault.Rule{Match: what, Times: 1, Do: pgfault.ResetBefore()})
		case 4:
			proxy.Add(pgfault.Rule{Match: what, Times: 1, Do: pgfault.FailAfter("40003")})
		case 5:
			until := make(chan struct{})
			time.AfterFunc(time.Duration(random.IntN(700))*time.Millisecond, func() { close(until) })
			proxy.Add(pgfault.Rule{Match: what, Times: 1, Do: pgfault.StallAfter(until)})
		default:
			until := make(chan struct{})
			time.AfterFunc(time.Duration(random.IntN(700))*time.Millisecond, func() { close(until) })
			proxy.Add(pgfault.Rule{Match: what, Times: 1, Do: pgfault.Stall(until)})
		}
	}
}

// signal ends or cancels what one of the replicas' busy sessions does.
func (r *stress) signal(conn *pgx.Conn, how string) {
	_, err := conn.Exec(context.WithoutCancel(r.Context()), "SELECT "+how+`(pid) FROM pg_stat_activity
WHERE application_name = 'idemd' AND state <> 'idle' AND datname = current_database() ORDER BY random() LIMIT 1`)
	if err != nil {
		r.Error(err)
	}
}

// keep maintains the buckets, as replicas do, but as fast as the clock goes.
func (r *stress) keep(ctx context.Context) {
	for ctx.Err() == nil {
		for _, s := range r.replicas {
			_, _ = s.Maintain(ctx) // fails now and then, as all does here
			_ = s.catalog.refresh(ctx)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// checkRows checks that no key has two rows.
func (r *stress) checkRows() {
	r.Helper()
	union := ""
	for _, b := range r.tables() {
		if !r.exists(b) {
			continue
		}
		if union != "" {
			union += " UNION ALL "
		}
		union += fmt.Sprintf("SELECT digest, fence FROM %s WHERE state <> %d", b.table("local"), stateMoved)
	}
	rows, err := r.conn.Query(r.Context(), "SELECT count(*), count(DISTINCT digest) FROM ("+union+") AS r")
	if err != nil {
		r.Fatal(err)
	}
	counts, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (counts [2]int, err error) {
		return counts, row.Scan(&counts[0], &counts[1])
	})
	if err != nil || counts[0] != counts[1] || counts[0] == 0 {
		r.Errorf("%d rows of %d keys (%v): a key has two rows", counts[0], counts[1], err)
	}
}
