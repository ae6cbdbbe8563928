package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// Each of several samples that are played at the same time has its own number of random runs, and
// so has what is no sample; none has no runs at all.
func TestSamplesAtTheSameTime(t *testing.T) {
	t.Setenv(whole, "")
	runs := map[int]*atomic.Int64{1: {}, 4: {}, 10: {}, 400: {}}
	t.Run("samples", func(t *testing.T) {
		for n, count := range runs {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				Sample(t, n, nil)
				t.Parallel()
				t.Run("part", func(t *testing.T) { checkRuns(t, func(*rapid.T) { count.Add(1) }) })
			})
		}
	})
	of := 100
	if testing.Short() {
		of = 20
	}
	for n, count := range runs {
		if got := count.Load(); got != int64(max(1, of/n)) {
			t.Errorf("one in %d: %d runs", n, got)
		}
	}
}
