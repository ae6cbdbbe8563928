package store_test

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

func TestSteadyClockFollowsTheMonotonicClock(t *testing.T) {
	source := storetest.NewClock()
	clock := store.NewSteadyClock(source, time.Time{})
	for _, d := range []time.Duration{time.Microsecond, time.Second, 24 * time.Hour} {
		before := clock.Now()
		source.Advance(d)
		if got := clock.Now().Sub(before); got != d {
			t.Errorf("after %v the clock moved %v", d, got)
		}
	}
}

func TestSteadyClockSlewsAfterAStep(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, -60 * time.Second} {
		source := storetest.NewClock()
		clock := store.NewSteadyClock(source, time.Time{})
		source.StepWall(step)
		if got := clock.Now(); !got.Equal(storetest.Start) {
			t.Errorf("step %v moved the clock by %v at once", step, got.Sub(storetest.Start))
		}
		source.Advance(1000 * time.Second)
		want := 1000*time.Second + 500*time.Millisecond
		if step < 0 {
			want = 1000*time.Second - 500*time.Millisecond
		}
		if got := clock.Now().Sub(storetest.Start); got != want {
			t.Errorf("step %v: 1000 s later the clock moved %v, want %v (500 µs a second)", step, got, want)
		}
	}
}

// backwards is a source whose monotonic clock breaks its promise.
type backwards struct{ *storetest.Clock }

func (b backwards) Monotonic() time.Duration { return -b.Clock.Monotonic() }

func TestSteadyClockNeverGoesBack(t *testing.T) {
	source := backwards{storetest.NewClock()}
	clock := store.NewSteadyClock(source, time.Time{})
	for range 3 {
		source.Advance(time.Second)
		if got := clock.Now(); !got.Equal(storetest.Start) {
			t.Fatalf("the clock shows %v, want that it stands at %v", got, storetest.Start)
		}
	}
}

func TestSteadyClockReachesTheWallAndStays(t *testing.T) {
	source := storetest.NewClock()
	clock := store.NewSteadyClock(source, time.Time{})
	source.StepWall(time.Millisecond)
	for range 10 {
		source.Advance(time.Second)
		clock.Now()
	}
	if got, want := clock.Now(), source.Wall(); !got.Equal(want) {
		t.Errorf("clock %v, wall %v", got, want)
	}
}

func TestSteadyClockStartsAtTheFloor(t *testing.T) {
	source := storetest.NewClock()
	floor := storetest.Start.Add(time.Minute)
	if got := store.NewSteadyClock(source, floor).Now(); !got.Equal(floor) {
		t.Errorf("started at %v, want the floor %v", got, floor)
	}
	past := storetest.Start.Add(-time.Minute)
	if got := store.NewSteadyClock(source, past).Now(); !got.Equal(storetest.Start) {
		t.Errorf("started at %v, want the wall %v", got, storetest.Start)
	}
}

func TestSteadyClockTellsTheWall(t *testing.T) {
	source := storetest.NewClock()
	clock := store.NewSteadyClock(source, time.Time{})
	source.StepWall(2 * time.Hour)
	if got := clock.Wall().Sub(clock.Now()); got != 2*time.Hour {
		t.Errorf("the wall clock is %v ahead, want the step of 2 h", got)
	}
}

func TestSteadyClockHasWholeMicroseconds(t *testing.T) {
	source := storetest.NewClock()
	clock := store.NewSteadyClock(source, time.Time{})
	for range 1500 {
		source.Advance(time.Nanosecond)
		if got := clock.Now(); got.Nanosecond()%1000 != 0 {
			t.Fatalf("read %v", got)
		}
	}
	if got := clock.Now().Sub(storetest.Start); got != time.Microsecond {
		t.Errorf("1500 ns of single steps moved the clock %v, want 1 µs", got)
	}
}
