package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
)

const (
	// refreshEvery is how often a replica reads the registry and the namespaces.
	refreshEvery = 2 * time.Second
	// maxCatalogAge is how old a copy of them may be when it is used. Older, the replica
	// reads them first.
	maxCatalogAge = 10 * time.Second
	// copyLag is after what time no replica acts on a copy from before a change any more: a
	// copy of maxCatalogAge may have been taken up by a statement that is still to run.
	copyLag = 2 * maxCatalogAge
	// catalogTimeout bounds one statement of the catalog, also when the network is silent.
	catalogTimeout = 5 * time.Second
	// kickPause bounds how often kicks alone refresh.
	kickPause = 100 * time.Millisecond
)

// catalog is this replica's copy of the registry of buckets and of the namespaces. It also
// carries the newest time of the database's clock between replicas and runs.
//
// A copy is of one instant, so with a newer bucket it has all older ones that can be a home
// (see register), and with a namespace the buckets of its tier.
type catalog struct {
	pool   *pgxpool.Pool
	texts  texts
	clock  *dbClock
	logger *slog.Logger

	copy    atomic.Pointer[snapshot]
	reading chan struct{} // holds a token while a refresh runs
	kicked  chan struct{}
	onKick  func() // tells maintenance; set before run

	// Set before the first refresh.
	watch   func(context.Context, rowQuerier) error // reads what else can change
	damaged func(error)                             // is told of what cannot be read

	// Only for the holder of the token of reading.
	ownReading int64 // the last time that a refresh itself has read
}

// snapshot is a copy. It is not changed any more.
type snapshot struct {
	namespaces map[string]*store.Namespace
	unreadable map[string]error          // namespaces whose settings are damaged
	buckets    map[store.Tier][]bucketID // the open ones, oldest first
	statements *planCache
	asked      time.Time // when it was asked for, by the monotonic clock
	now        int64     // by the database's clock
}

func newCatalog(pool *pgxpool.Pool, t texts, clock *dbClock, logger *slog.Logger) *catalog {
	return &catalog{
		pool: pool, texts: t, clock: clock, logger: logger,
		reading: make(chan struct{}, 1), kicked: make(chan struct{}, 1), onKick: func() {},
		watch: func(context.Context, rowQuerier) error { return nil }, damaged: func(error) {},
	}
}

// current returns a copy that is not older than maxCatalogAge.
func (c *catalog) current(ctx context.Context) (*snapshot, error) {
	if snap := c.copy.Load(); snap != nil && time.Since(snap.asked) < maxCatalogAge {
		return snap, nil
	}
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	return c.copy.Load(), nil
}

// kick asks for a refresh and for maintenance soon: something is missing or was dropped.
func (c *catalog) kick() {
	select {
	case c.kicked <- struct{}{}:
	default: // is asked for already
	}
	c.onKick()
}

// refresh reads everything anew. What was committed before the call is in the copy then.
func (c *catalog) refresh(ctx context.Context) error {
	called := time.Now()
	select {
	case c.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.reading }()
	if snap := c.copy.Load(); snap != nil && snap.asked.After(called) {
		return nil // another has done it meanwhile
	}
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	err := c.read(bounded)
	if err == nil {
		err = c.tellBucket(bounded)
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return unavailable(err)
	}
	return nil
}

// Kinds of rows that catalogQuery gives.
const (
	aClock = iota
	aBucket
	aRegion
	aNamespace
)

// catalogQuery reads all in one statement: one instant.
func (t texts) catalogQuery() string {
	return fmt.Sprintf(`SELECT %[1]d::int4, %[4]s, coalesce((SELECT newest_us FROM idem_clock WHERE region = $1), 0)::int8,
  coalesce((SELECT max(compatible) FROM idem_schema), 0)::int8, ''::text, ''::bytea
UNION ALL SELECT %[2]d::int4, tier::int8, start_us, 0::int8, '', ''::bytea FROM idem_buckets WHERE region = $1 AND state = %[5]d
UNION ALL SELECT %[3]d::int4, 0::int8, 0::int8, 0::int8, name, settings FROM idem_namespaces
UNION ALL SELECT %[6]d::int4, 0::int8, 0::int8, 0::int8, region, ''::bytea FROM idem_members
ORDER BY 1, 2, 3`, aClock, aBucket, aNamespace, us(t.clock.Now), bucketOpen, aRegion)
}

func (c *catalog) read(ctx context.Context) error {
	snap := &snapshot{
		namespaces: map[string]*store.Namespace{}, unreadable: map[string]error{}, buckets: map[store.Tier][]bucketID{},
		statements: newPlanCache(c.texts), asked: time.Now(),
	}
	if err := c.watch(ctx, c.pool); err != nil {
		return err
	}
	before := c.clock.wall()
	rows, err := c.pool.Query(ctx, c.texts.catalogQuery(), c.texts.region)
	if err != nil {
		return err
	}
	var (
		kind     int32
		x, y, z  int64
		name     string
		settings []byte
		regions  []string
	)
	_, err = pgx.ForEachRow(rows, []any{&kind, &x, &y, &z, &name, &settings}, func() error {
		switch kind {
		case aClock:
			c.clock.saw(x)
			c.clock.remember(y)
			c.clock.compare(x, before)
			c.ownReading, snap.now = x, x
			return compatible(int(z))
		case aBucket:
			snap.buckets[store.Tier(x)] = append(snap.buckets[store.Tier(x)], bucketID{tier: store.Tier(x), start: y})
			return nil
		case aRegion:
			regions = append(regions, name)
			return nil
		default:
			c.readNamespace(snap, name, settings)
			return nil
		}
	})
	if err != nil {
		return err
	}
	for _, ns := range snap.namespaces {
		ns.SharedBy = sharers(regions)
	}
	c.copy.Store(snap)
	return nil
}

// readNamespace puts a namespace into a copy. One that is damaged is refused by itself, and told
// of once.
func (c *catalog) readNamespace(snap *snapshot, name string, settings []byte) {
	ns, err := decodeNamespace(name, settings)
	if err == nil {
		snap.namespaces[name] = &ns
		return
	}
	snap.unreadable[name] = err
	if old := c.copy.Load(); old == nil || old.unreadable[name] == nil {
		c.damaged(err)
		c.logger.Error("the settings of a namespace are damaged; everything in it is refused until they are repaired", "namespace", name, "error", err)
	}
}

// namespace returns a namespace, nil if there is none.
func (s *snapshot) namespace(name string) (*store.Namespace, error) {
	if err := s.unreadable[name]; err != nil {
		return nil, unreadable(name, err)
	}
	return s.namespaces[name], nil
}

// known returns a namespace that there is.
func (s *snapshot) known(name string) (*store.Namespace, error) {
	ns, err := s.namespace(name)
	if ns == nil && err == nil {
		err = store.NamespaceUnknown(name)
	}
	return ns, err
}

// run refreshes the copy, and tells the database the newest time, until ctx ends.
func (c *catalog) run(ctx context.Context) {
	refresh := time.NewTicker(refreshEvery)
	defer refresh.Stop()
	told := time.NewTicker(time.Second)
	defer told.Stop()
	failing := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-told.C:
			err = c.tell(ctx)
		case <-refresh.C:
			err = c.refresh(ctx)
		case <-c.kicked:
			err = c.refresh(ctx)
			pause(ctx, kickPause)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			c.logger.Warn("the database does not tell which buckets there are; it is asked again", "error", causeOf(err))
		}
		if err == nil && failing {
			c.logger.Info("the database answers again")
		}
		failing = err != nil
	}
}

// causeOf is what a log should say of an error, of which the caller gets the public text.
func causeOf(err error) error {
	var refusal *store.Error
	if errors.As(err, &refusal) && refusal.Cause != nil {
		return refusal.Cause
	}
	return err
}

// pause returns after d, or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tell writes the newest time of the database's clock that this replica has met, for others
// and for later runs. Only times of operations count: when nothing goes on nothing is
// written, and of several replicas mostly one writes.
func (c *catalog) tell(ctx context.Context) error {
	select {
	case c.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.reading }()
	newest := c.clock.newestSeen()
	if newest <= max(c.ownReading, c.clock.newestTold()) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	return c.write(bounded, newest)
}

// tellBucket writes the newest time when it is in a later bucket than what the database has
// been told, whether or not operations go on: in the new bucket nothing is granted before the
// older ones are barred (10). Every bucket begins with one of the narrowest tier.
func (c *catalog) tellBucket(ctx context.Context) error {
	newest := c.clock.newestSeen()
	if c.clock.barred() >= bucketAt(store.TierHour, newest-c.clock.maxOffset).start {
		return nil
	}
	return c.write(ctx, newest)
}

func (c *catalog) write(ctx context.Context, newest int64) error {
	_, err := c.pool.Exec(ctx, `INSERT INTO idem_clock (region, newest_us) VALUES ($1, $2)
ON CONFLICT (region) DO UPDATE SET newest_us = excluded.newest_us WHERE idem_clock.newest_us < excluded.newest_us`, c.texts.region, newest)
	if err == nil {
		c.clock.remember(newest)
	}
	return err
}

// namespace returns a namespace. One that is not in the copy may be new.
func (c *catalog) namespace(ctx context.Context, name string) (*store.Namespace, error) {
	snap, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	if ns, err := snap.namespace(name); ns != nil || err != nil {
		return ns, err
	}
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	return c.copy.Load().known(name)
}
