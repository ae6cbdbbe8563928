package sqltest_test

import (
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
	"github.com/idemd/idemd/store/sqlstore/sqltest"
	"github.com/idemd/idemd/store/storetest"
)

// The tests of this package ask one thing after the other, by clocks that they drive: two at once
// take little longer than one. They are apart from those of sqlstore, which hold transactions
// open that a store waits for.

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Sample(t, 8*brief(3), sqltest.Factory))
}

// TestConformanceOnCockroach says so and skips where there is no cluster.
func TestConformanceOnCockroach(t *testing.T) {
	pgtest.Cockroach(t)
	storetest.Run(t, sqltest.CockroachFactory)
}

// brief is n with -short, and one without.
func brief(n int) int {
	if testing.Short() {
		return n
	}
	return 1
}
