package sqlstore

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
)

const (
	sealPoll = 100 * time.Millisecond
	// sealStale is after what time a mark is taken once more while an older one is waited
	// for: after a failover its number may be one that the new primary has not reached.
	sealStale = time.Minute
)

// sealer finds out up to when nothing can be committed any more (9): no timeout covers a
// COMMIT, so the time alone does not say that. It takes the number of a transaction of its
// own as a mark at some time, and waits until all with lower numbers have ended. Statements
// that write get their number while they run, so at a bucket's start and the window no older
// statement can still get one.
//
// Other applications' transactions on the same server are waited for too.
type sealer struct {
	pool    *pgxpool.Pool
	sql     SQLClock
	clock   *dbClock
	catalog *catalog
	window  int64
	logger  *slog.Logger

	mu      sync.Mutex
	sealed  int64
	marks   []sealMark // not reached yet, oldest first
	taken   int64      // the time of the newest mark
	waiting bool       // it has been logged that a mark is long waited for
}

// sealMark is the number of a transaction, taken at a time of the database's clock.
type sealMark struct {
	at    int64
	xid   string
	taken time.Time
}

func newSealer(pool *pgxpool.Pool, d dialect, opts Options, clock *dbClock, c *catalog) *sealer {
	s := &sealer{
		pool: pool, sql: opts.Clock, clock: clock, catalog: c,
		window: opts.Timing.window().Microseconds(), logger: opts.Logger,
	}
	if !d.needsSeal() {
		s.sealed, s.taken = math.MaxInt64, math.MaxInt64
	}
	return s
}

// upTo is the newest time such that every transaction that had a number then has ended.
func (s *sealer) upTo() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seeded("seal") {
		return math.MaxInt64
	}
	return s.sealed
}

// due is the time that a mark must be from: the end of the window of the newest bucket, of
// the tiers in use, whose window has ended.
func (s *sealer) due() int64 {
	snap := s.catalog.copy.Load()
	if snap == nil {
		return 0
	}
	past := s.clock.estimate() - s.window
	due := int64(math.MinInt64)
	for _, tier := range snap.tiers() {
		due = max(due, bucketAt(tier, past).start+s.window)
	}
	return due
}

// advance takes a mark if one is due, and looks which have been reached. It asks the database
// nothing when there is nothing to know.
func (s *sealer) advance(ctx context.Context) (pending bool, err error) {
	if s.mustMark() {
		if err := s.mark(ctx); err != nil {
			return true, err
		}
	}
	if len(s.pending()) == 0 {
		return false, nil
	}
	if err := s.look(ctx); err != nil {
		return true, err
	}
	return len(s.pending()) > 0, nil
}

func (s *sealer) pending() []sealMark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks
}

func (s *sealer) mustMark() bool {
	due := s.due()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.marks)
	return s.taken == 0 || s.taken < due || n > 0 && time.Since(s.marks[n-1].taken) > sealStale
}

// mark takes a mark. It never takes the place of the oldest one that is waited for, or none
// would ever be reached while others come.
func (s *sealer) mark(ctx context.Context) error {
	m, told, err := s.takeMark(ctx)
	if err == nil && !told {
		if err := s.catalog.refresh(ctx); err != nil {
			return err
		}
		m, told, err = s.takeMark(ctx)
	}
	if err != nil || !told {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = m.at
	s.marks = append(s.marks[:min(1, len(s.marks)):min(1, len(s.marks))], m)
	return nil
}

// takeMark takes a mark, and says whether the database had been told the time before: if not,
// and the clock steps back now, what then takes an earlier time is not before the mark (10).
func (s *sealer) takeMark(ctx context.Context) (m sealMark, told bool, err error) {
	m.taken = time.Now()
	barred := s.clock.barred()
	err = s.pool.QueryRow(ctx, "SELECT "+us(s.sql.Now)+", pg_current_xact_id()::text").Scan(&m.at, &m.xid)
	return m, barred >= bucketAt(store.TierHour, m.at-s.window).start, err
}

// look finds out which marks have been reached.
func (s *sealer) look(ctx context.Context) error {
	for _, m := range s.pending() {
		reached, err := s.reached(ctx, m)
		if err != nil {
			return err
		}
		if reached {
			s.reach(m)
		}
	}
	s.complain()
	return nil
}

func (s *sealer) reached(ctx context.Context, m sealMark) (reached bool, err error) {
	err = s.pool.QueryRow(ctx, "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8", m.xid).Scan(&reached)
	return reached, err
}

// ended returns once all transactions have ended that have a number now.
func (s *sealer) ended(ctx context.Context) error {
	m, _, err := s.takeMark(ctx)
	for err == nil {
		var reached bool
		if reached, err = s.reached(ctx, m); reached || err != nil {
			return err
		}
		pause(ctx, sealPoll/20)
	}
	return err
}

func (s *sealer) reach(reached sealMark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = max(s.sealed, reached.at)
	var rest []sealMark
	for _, m := range s.marks {
		if m.at > reached.at {
			rest = append(rest, m)
		}
	}
	s.marks, s.waiting = rest, false
}

// complain tells an operator, once, that a transaction is in the way.
func (s *sealer) complain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 || s.waiting || time.Since(s.marks[0].taken) < 10*time.Second {
		return
	}
	s.waiting = true
	s.logger.Warn("a transaction on the server does not end; at the end of the next bucket nothing can be granted until it does (pg_stat_activity shows it)",
		"transaction", s.marks[0].xid, "since", timeOf(s.marks[0].at))
}

// run advances until ctx ends.
func (s *sealer) run(ctx context.Context) {
	ticker := time.NewTicker(sealPoll)
	defer ticker.Stop()
	failing := false
	for {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := s.advance(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			s.logger.Warn("the database does not tell which transactions run; it is asked again", "error", err)
		}
		if failing = err != nil; failing {
			pause(ctx, time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tiers are those that have buckets to be cared for: of the namespaces, and the first, in
// which maintenance has its own key.
func (s *snapshot) tiers() []store.Tier {
	used := map[store.Tier]bool{maintenanceTier: true}
	for _, ns := range s.namespaces {
		used[ns.Tier] = true
	}
	var tiers []store.Tier
	for _, tier := range store.Tiers {
		if used[tier] {
			tiers = append(tiers, tier)
		}
	}
	return tiers
}
