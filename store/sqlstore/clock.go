package sqlstore

import (
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// dbClock is what this replica knows of the database's clock, which decides everything. Its
// estimate only chooses which statement to send; the statement checks the time itself.
type dbClock struct {
	maxOffset int64
	monotonic func() time.Duration // nil: the clock stands still
	wall      func() time.Time
	observer  Observer
	logger    *slog.Logger

	mu     sync.Mutex
	newest int64         // the newest reading of any replica that this one knows of
	told   int64         // the newest that the database is known to have been told
	read   int64         // the last reading
	at     time.Duration // when it was taken, by the monotonic clock
	apart  time.Duration // how far the wall clock was ahead of the last one that was compared
}

func newDBClock(opts Options) *dbClock {
	return &dbClock{
		maxOffset: opts.Timing.MaxOffset.Microseconds(), monotonic: opts.Monotonic,
		wall: opts.Wall, observer: opts.Observer, logger: opts.Logger,
	}
}

func (c *dbClock) elapsed() time.Duration {
	if c.monotonic == nil {
		return 0
	}
	return c.monotonic()
}

// saw takes note of a reading of the database's clock.
func (c *dbClock) saw(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.at = now, c.elapsed()
	c.newest = max(c.newest, now)
}

// remember takes note of a reading that the database has been told: of another replica, or an
// earlier run, or this one's.
func (c *dbClock) remember(newest int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest, c.told = max(c.newest, newest), max(c.told, newest)
}

// newestSeen is the newest time of the database's clock that this replica knows of.
func (c *dbClock) newestSeen() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// newestTold is the newest time that the database is known to have been told.
func (c *dbClock) newestTold() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// barred is the instant before which no statement writes a grant any more, whichever replica
// sends it and however little that one knows: the guard is in the statement.
func (c *dbClock) barred() int64 {
	if seeded("told") {
		return math.MaxInt64
	}
	return c.newestTold() - c.maxOffset
}

// estimate is what the database's clock shows now, as far as this replica can tell.
func (c *dbClock) estimate() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read + (c.elapsed() - c.at).Microseconds()
}

// floor is the earliest time that a statement may act on. A clock behind it has stepped back
// by more than the markers cover.
func (c *dbClock) floor() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seeded("clock-floor") {
		return 0
	}
	return c.newest - c.maxOffset
}

// check refuses to act on a time behind the floor.
func (c *dbClock) check(now int64) error {
	if floor := c.floor(); now < floor {
		return &store.Error{
			Sentinel: store.ErrUnavailable,
			Detail: fmt.Sprintf("the database's clock stands at %s, behind what it has shown; claims go on when it has caught up with %s",
				timeOf(now).Format(time.RFC3339Nano), timeOf(floor).Format(time.RFC3339Nano)),
			RetryAfter: min(time.Duration(floor-now)*time.Microsecond, time.Minute),
		}
	}
	return nil
}

// maxApart is how far apart the database's clock and this machine's may be. If they are
// further, nobody can say which of the two is wrong.
const maxApart = 5 * time.Minute

// compare compares a reading with the wall clock, which showed before when the database was
// asked. However long the answer took, that alone is no difference.
func (c *dbClock) compare(now int64, before time.Time) {
	at, after := timeOf(now), c.wall()
	ahead := max(before.Sub(at), 0) + min(after.Sub(at), 0)
	c.observer.WallAhead(ahead)
	c.mu.Lock()
	was := c.apart.Abs() > maxApart
	c.apart = ahead
	c.mu.Unlock()
	switch is := ahead.Abs() > maxApart; {
	case is == was:
	case is:
		c.logger.Error("the database's clock and this machine's are far apart; the database's decides, but nothing is dropped until they agree",
			"database", at, "wall", after)
	default:
		c.logger.Info("the database's clock and this machine's agree again", "wall_ahead", ahead)
	}
}

// suspect returns an error while the database's clock and this machine's are far apart.
func (c *dbClock) suspect() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apart.Abs() <= maxApart {
		return nil
	}
	return fmt.Errorf("this machine's clock is %v ahead of the database's, which decides: one of the two is wrong", c.apart.Round(time.Second))
}

// clockSuspect says that nothing should be dropped because of what the database's clock shows.
// It is as fresh as the copy of the catalog.
func (s *Store) clockSuspect() bool { return s.clock.suspect() != nil }
