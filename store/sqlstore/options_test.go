package sqlstore

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{
		{},
		{Region: "eu-west-1", MaxConns: 1, MaxBatch: 1, MaintainEvery: -1},
		{MaxBatch: maxMaxBatch, Timing: Timing{MaxStatement: minStatement, MaxOffset: time.Microsecond}},
		{Timing: Timing{MaxStatement: 110 * time.Second, MaxOffset: 5 * time.Second}}, // a window of 225 s
	} {
		if _, err := o.withDefaults(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for says, list := range map[string][]Options{
		"region ":         {{Region: "EU"}, {Region: "1"}, {Region: "a'b"}, {Region: strings.Repeat("a", 32)}},
		"MaxConns ":       {{MaxConns: -1}, {MaxConns: math.MaxInt32 + 1}},
		"MaxBatch ":       {{MaxBatch: -1}, {MaxBatch: maxMaxBatch + 1}},
		"MaxStatement ":   {{Timing: Timing{MaxStatement: -time.Second}}, {Timing: Timing{MaxStatement: minStatement - 1}}, {Timing: Timing{MaxStatement: math.MaxInt64}}},
		"MaxOffset ":      {{Timing: Timing{MaxOffset: -1}}, {Timing: Timing{MaxOffset: math.MaxInt64}}},
		"clock rate ":     {{Clock: SQLClock{Rate: -1}}, {Clock: SQLClock{Rate: math.NaN()}}, {Clock: SQLClock{Rate: math.Inf(1)}}},
		"the marker wind": {{Timing: Timing{MaxStatement: 113 * time.Second}}},
	} {
		for _, o := range list {
			if _, err := o.withDefaults(); err == nil || !strings.HasPrefix(err.Error(), says) {
				t.Errorf("%+v: %v; want %q", o, err, says)
			}
		}
	}
	// Faster than real time, sessions have that much less.
	if _, err := (Options{Clock: SQLClock{Rate: 1000}}).withDefaults(); err == nil {
		t.Error("a statement of 2 ms is let through")
	}
}
