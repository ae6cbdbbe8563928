package store

import (
	"sync"
	"time"
)

// Clock tells the time. A store's clock never goes backwards.
type Clock interface{ Now() time.Time }

// ClockSource is what a [SteadyClock] is made from: the operating system in
// production ([SystemClock]), a script in tests.
type ClockSource interface {
	// Wall is the wall clock. It may step in both directions.
	Wall() time.Time
	// Monotonic is the time since some fixed instant. It never steps.
	Monotonic() time.Duration
}

// slewPerMillion is how fast a [SteadyClock] corrects itself towards the wall: 500 µs a
// second, so that a lease of 15 minutes is never off by more than half a second.
const slewPerMillion = 500

// SteadyClock follows the monotonic clock, corrects itself slowly towards the wall clock
// and never goes backwards. A step of the wall clock therefore expires nothing early.
// It may be used by any number of goroutines.
type SteadyClock struct {
	source ClockSource

	mu       sync.Mutex
	now      time.Time     // the last reading, before truncation
	lastMono time.Duration // when it was taken
}

// NewSteadyClock starts a clock at the wall clock or at floor, whichever is later. The
// floor is the latest time that an earlier run may have acted on.
func NewSteadyClock(source ClockSource, floor time.Time) *SteadyClock {
	start := source.Wall()
	if start.Before(floor) {
		start = floor
	}
	return &SteadyClock{source: source, now: start.UTC().Round(0), lastMono: source.Monotonic()}
}

// Now returns the time in UTC and whole microseconds.
func (c *SteadyClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := c.source.Monotonic()
	elapsed := max(mono-c.lastMono, 0)
	c.lastMono = max(mono, c.lastMono)
	c.now = c.now.Add(elapsed)
	limit := elapsed * slewPerMillion / 1_000_000
	offset := c.source.Wall().Sub(c.now)
	c.now = c.now.Add(min(max(offset, -limit), limit))
	return c.now.Truncate(time.Microsecond)
}

// Wall returns the wall clock that this one is off from, as it stands.
func (c *SteadyClock) Wall() time.Time { return c.source.Wall().UTC().Round(0) }

// SystemClock is the operating system's clock.
type SystemClock struct{}

var processStart = time.Now()

// Wall implements [ClockSource].
func (SystemClock) Wall() time.Time { return time.Now().Round(0) }

// Monotonic implements [ClockSource].
func (SystemClock) Monotonic() time.Duration { return time.Since(processStart) }
