package pebblestore

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/store"
)

// clockReserve is how far ahead a commit says the clock may go before the next commit is
// needed. Answers that change nothing are free meanwhile. After a crash the clock stands
// still for at most this long, at the instant up to which answers may have been given.
const clockReserve = 50 * time.Millisecond

// clockTolerance is how far off the wall clock may be without a word: the skew of the
// shortest retention.
const clockTolerance = store.MinRetention / 10

// clock is the store's clock. It never shows an earlier time than any answer of an earlier
// run was decided by.
type clock struct {
	steady   *store.SteadyClock
	floor    time.Time
	observer Observer
	logger   *slog.Logger
	off      atomic.Bool // the wall clock is further off than clockTolerance, and that was logged
}

// resumeClock starts the clock after the newest commit of the run before. It follows the
// wall clock from then on, and shows newest.until until the wall clock has passed that.
func resumeClock(opts Options, newest commitTime) *clock {
	return &clock{steady: store.NewSteadyClock(opts.Source, newest.now), floor: newest.until,
		observer: opts.Observer, logger: opts.Logger}
}

// Now is the time that decides. It tells how far the wall clock is off.
func (c *clock) Now() time.Time {
	now := c.glance()
	c.compare(now)
	return now
}

// glance is Now without a word, for what is read past the loop: that asks often, and the
// loop, which it goes through whenever the time of the last commit is used up, tells.
func (c *clock) glance() time.Time {
	now := c.steady.Now()
	if now.Before(c.floor) {
		return c.floor
	}
	return now
}

// Wall is the wall clock.
func (c *clock) Wall() time.Time { return c.steady.Wall() }

// wallAt is what the wall clock showed at an instant of the store's clock that has just been. It is
// never later than that, so that the store is not taken to be less ahead than it is.
func (c *clock) wallAt(instant time.Time) time.Time {
	wall := c.Wall()
	return instant.Add(wall.Sub(c.glance()))
}

// compare tells how far the wall clock is ahead of now, and logs when that becomes or stops
// being more than is tolerated.
func (c *clock) compare(now time.Time) {
	ahead := c.Wall().Sub(now)
	c.observer.WallAhead(ahead)
	off := ahead.Abs() > clockTolerance
	if !c.off.CompareAndSwap(!off, off) {
		return
	}
	if !off {
		c.logger.Info("the store's clock agrees with the wall clock again", "wall_ahead", ahead)
		return
	}
	c.logger.Warn("the wall clock has stepped away from the store's, which decides, expires nothing early and corrects itself by 500 µs a second; "+
		"a restart follows a wall clock that is ahead at once", "wall_ahead", ahead)
}
