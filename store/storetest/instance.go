// Package storetest holds what every backend is checked with: golden scripts of the
// table of states and operations, a reference model driven by random operations, the
// promises, and the faults met in the field.
package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// Start is the time at which a fresh instance's clock stands.
var Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Instance is one fresh store under test.
type Instance struct {
	store.Backend
	// Clock drives the store's clock.
	Clock *Clock
	// AttemptsHidden says that only inspected records show attempt ids, as over the wire: listed
	// and settled ones do not.
	AttemptsHidden bool
	// Unplaced says that the Backend's Placements and Members cannot be asked, as over the wire.
	Unplaced bool
	// RetentionLag is how long after a change of a namespace's retention an intent may still be
	// granted under the old one, by a process that has not heard of the change.
	RetentionLag time.Duration
	// Reopen closes the store cleanly, opens it again on the same data and the same
	// Clock, and replaces Backend. It is nil if the store keeps nothing.
	Reopen func()
}

// Factory makes a fresh, empty instance whose clock stands at [Start]. It registers its
// own clean-up with t.
type Factory func(t testing.TB) *Instance

// Clock is a [store.ClockSource] that stands still until it is told to move.
type Clock struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
	// changed is told of every move, for a store whose clock is not in this process.
	changed func()
}

// OnChange has f called after every move of the clock.
func (c *Clock) OnChange(f func()) { c.changed = f }

func (c *Clock) move(wall, mono time.Duration) {
	c.mu.Lock()
	c.wall = c.wall.Add(wall)
	c.mono += mono
	c.mu.Unlock()
	if c.changed != nil {
		c.changed()
	}
}

// NewClock returns a clock that stands at [Start].
func NewClock() *Clock { return &Clock{wall: Start} }

// Advance lets d pass, on the wall and on the monotonic clock alike.
func (c *Clock) Advance(d time.Duration) { c.move(d, d) }

// StepWall moves only the wall clock, by a positive or negative d.
func (c *Clock) StepWall(d time.Duration) { c.move(d, 0) }

// Wall implements [store.ClockSource].
func (c *Clock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

// Monotonic implements [store.ClockSource].
func (c *Clock) Monotonic() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mono
}
