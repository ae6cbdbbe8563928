package sqlstore

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// On PostgreSQL extract is exact; on CockroachDB it is this, and round makes the same of it.
func TestMicroseconds(t *testing.T) {
	t.Parallel()
	conn := dial(t, pgtest.Shared(t).NewDatabase(t))
	last := time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	random := rand.New(rand.NewPCG(1, 0))
	instants := []int64{began, began - 1, began + 1, began + 999_999, 1<<31*1_000_000 - 1, 1<<31*1_000_000 + 1, last}
	for range 1_000_000 {
		instants = append(instants, began+random.Int64N(last-began))
	}
	for i, want := range instants {
		asFloat := float64(want*1000) / float64(time.Second)
		if got := int64(math.RoundToEven(asFloat * 1_000_000)); got != want {
			t.Fatalf("as CockroachDB does it: %d instead of %d", got, want)
		}
		if i > 100 {
			continue
		}
		var got int64
		if err := conn.QueryRow(t.Context(), "SELECT "+us("$1::timestamptz"), timeOf(want)).Scan(&got); err != nil || got != want {
			t.Fatalf("PostgreSQL: %d instead of %d (%v)", got, want, err)
		}
	}
}
