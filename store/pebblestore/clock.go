package pebblestore

import (
	"time"

	"github.com/idemd/idemd/store"
)

// clockReserve is how far ahead a commit says the clock may go before the next commit is
// needed. Answers that change nothing are free meanwhile. After a crash the clock stands
// still for at most this long, at the instant up to which answers may have been given.
const clockReserve = 50 * time.Millisecond

// clock is the store's clock. It never shows an earlier time than any answer of an earlier
// run was decided by.
type clock struct {
	steady *store.SteadyClock
	floor  time.Time
}

// resumeClock starts the clock after the newest commit of the run before. It follows the
// wall clock from then on, and shows newest.until until the wall clock has passed that.
func resumeClock(source store.ClockSource, newest commitTime) *clock {
	return &clock{steady: store.NewSteadyClock(source, newest.now), floor: newest.until}
}

func (c *clock) Now() time.Time {
	now := c.steady.Now()
	if now.Before(c.floor) {
		return c.floor
	}
	return now
}
