package storetest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// whole, in the environment, has every suite played whole, however long that takes.
const whole = "IDEMD_WHOLE_SUITE"

// Sample is a factory for every n-th golden section and every n-th random run of a suite, and
// says so. With IDEMD_WHOLE_SUITE=1 in the environment it is one for all of them.
func Sample(t *testing.T, n int, factory Factory) Factory {
	t.Helper()
	if n <= 1 || os.Getenv(whole) != "" {
		return factory
	}
	fmt.Fprintf(os.Stderr, "%s: only a SAMPLE, one in %d, of the golden scripts and of the random runs is played; %s=1 plays all\n", t.Name(), n, whole)
	sampled.Store(t.Name(), max(1, 100/n))
	t.Cleanup(func() { sampled.Delete(t.Name()) })
	sections := 0
	return func(t testing.TB) *Instance {
		t.Helper()
		if strings.Contains(t.Name(), ".txt/") {
			if sections++; sections%n != 0 {
				t.Skipf("only every %d. section is played", n)
			}
		}
		return factory(t)
	}
}

// Brief is Sample with -short, and the factory itself without.
func Brief(t *testing.T, n int, factory Factory) Factory {
	t.Helper()
	if !testing.Short() {
		return factory
	}
	return Sample(t, n, factory)
}

// sampled are the tests that play a sample, by name, and how many random runs there are in each.
var sampled sync.Map

// runsOf is how many random runs a test has that is, or is part of, one that plays a sample;
// otherwise zero.
func runsOf(test string) int {
	for {
		if n, ok := sampled.Load(test); ok {
			return n.(int)
		}
		end := strings.LastIndexByte(test, '/')
		if end < 0 {
			return 0
		}
		test = test[:end]
	}
}

// checking is held while rapid reads how many runs there are, which it takes from a flag alone.
var checking sync.Mutex

// checkRuns is rapid.Check, with as many runs as the test has. Tests may call it at the same time.
func checkRuns(t testing.TB, prop func(*rapid.T)) {
	t.Helper()
	checking.Lock()
	restore := setRuns(t, runsOf(t.Name()))
	begun := sync.OnceFunc(func() {
		restore()
		checking.Unlock()
	})
	defer begun()
	rapid.Check(t, func(rt *rapid.T) {
		begun() // rapid has read it
		prop(rt)
	})
}

// setRuns says how many random runs there are, unless n is zero, and how to take that back.
func setRuns(t testing.TB, n int) (restore func()) {
	if n == 0 {
		return func() {}
	}
	if testing.Short() {
		n = max(n, 5) // of which rapid makes a fifth
	}
	runs := flag.Lookup("rapid.checks").Value
	set := func(text string) {
		if err := runs.Set(text); err != nil {
			t.Error(err)
		}
	}
	before := runs.String()
	set(fmt.Sprint(n))
	return func() { set(before) }
}
