package sqlstore

import (
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// dbClock is what this replica knows of the database's clock, which decides everything. Its
// estimate only chooses which statement to send; the statement checks the time itself.
type dbClock struct {
	maxOffset int64
	monotonic func() time.Duration // nil: the clock stands still

	mu     sync.Mutex
	newest int64         // the newest reading of any replica that this one knows of
	read   int64         // the last reading
	at     time.Duration // when it was taken, by the monotonic clock
}

func newDBClock(opts Options) *dbClock {
	return &dbClock{maxOffset: opts.Timing.MaxOffset.Microseconds(), monotonic: opts.Monotonic}
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

// remember takes note of a reading that another replica, or an earlier run, has had.
func (c *dbClock) remember(newest int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, newest)
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
