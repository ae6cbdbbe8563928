package pebblestore

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

type wallObserver struct {
	noObserver
	ahead time.Duration
}

func (o *wallObserver) WallAhead(ahead time.Duration) { o.ahead = ahead }

// Of a wall clock that is off, metrics are told always, and the log once.
func TestClockTellsHowFarTheWallIsOff(t *testing.T) {
	source, observer, log := storetest.NewClock(), &wallObserver{}, &strings.Builder{}
	c := resumeClock(Options{Source: source, Observer: observer, Logger: slog.New(slog.NewTextHandler(log, nil))}, commitTime{})
	ahead, warned, settled := time.Duration(0), 0, 0
	for _, step := range []struct {
		by              time.Duration
		warned, settled int
	}{
		{6 * time.Second, 0, 0},
		{time.Microsecond, 1, 0},
		{2 * time.Hour, 1, 0},
		{-2 * time.Hour, 1, 0},
		{-time.Microsecond, 1, 1},
		{-12 * time.Second, 1, 1},
		{-time.Microsecond, 2, 1},
		{time.Microsecond, 2, 2},
	} {
		source.StepWall(step.by)
		ahead += step.by
		for range 3 {
			c.Now()
		}
		warned, settled = strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "level=INFO")
		if observer.ahead != ahead || warned != step.warned || settled != step.settled {
			t.Errorf("%v ahead: the observer was told %v; %d warnings and %d all-clears, want %d and %d",
				ahead, observer.ahead, warned, settled, step.warned, step.settled)
		}
	}
}

// The same through a store: a Claim is let in by the wall clock, and its observer is told.
func TestStoreTellsHowFarTheWallIsOff(t *testing.T) {
	clock, observer := storetest.NewClock(), &wallObserver{}
	s := mustOpen(t, Options{FS: vfs.NewCrashableMem(), Source: clock, MaintainEvery: -1, Observer: observer})
	clock.StepWall(2 * time.Hour)
	req := testClaim("k", "a")
	req.IntentTime = clock.Wall()
	if answer, err := s.Claim(t.Context(), req); err != nil || answer.Granted == nil {
		t.Errorf("a claim with the present as its intent time: %+v, %v", answer, err)
	}
	mustClose(t, s)
	if observer.ahead != 2*time.Hour {
		t.Errorf("the observer was told that the wall clock is %v ahead, want 2 h", observer.ahead)
	}
	if got := store.MinRetention / 10; clockTolerance != got {
		t.Errorf("tolerated are %v, want the smallest skew, %v", clockTolerance, got)
	}
}
