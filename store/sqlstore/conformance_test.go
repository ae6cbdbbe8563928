package sqlstore_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
	"github.com/idemd/idemd/store/sqlstore/sqltest"
	"github.com/idemd/idemd/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, sample(t, brief(8), sqltest.Factory)) }

// TestConformanceOnCockroach says so and skips where there is no cluster.
func TestConformanceOnCockroach(t *testing.T) {
	pgtest.Cockroach(t)
	storetest.Run(t, sqltest.CockroachFactory)
}

var sayBriefly = sync.OnceFunc(func() {
	fmt.Fprintln(os.Stderr, "sqlstore: -short: only a SAMPLE of the golden scripts and of the random runs is played; without -short all are")
})

// brief is n with -short, which it says, and one without.
func brief(n int) int {
	if !testing.Short() {
		return 1
	}
	sayBriefly()
	return n
}

// sample is a factory for every n-th golden section and every n-th random run.
func sample(t *testing.T, n int, factory storetest.Factory) storetest.Factory {
	if n > 1 {
		setChecks(t, max(1, 100/n))
	}
	sections := 0
	return func(t testing.TB) *storetest.Instance {
		t.Helper()
		if strings.Contains(t.Name(), ".txt/") {
			if sections++; sections%n != 0 {
				t.Skipf("only every %d. section is played", n)
			}
		}
		return factory(t)
	}
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
