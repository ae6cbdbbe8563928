package storetest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
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
	setChecks(t, max(1, 100/n))
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

// setChecks says how many random runs there are in this test.
func setChecks(t *testing.T, n int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if err := checks.Value.Set(fmt.Sprint(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := checks.Value.Set(before); err != nil {
			t.Error(err)
		}
	})
}
