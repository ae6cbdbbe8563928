package pgtest

import (
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"
)

// cockroachDSN names the cluster that tests run on as well, if there is one.
const cockroachDSN = "IDEMD_COCKROACH_DSN"

const cockroachNotRun = "CockroachDB was NOT run: " + cockroachDSN + " is not set"

var sayCockroachNotRun = sync.OnceFunc(func() { fmt.Fprintln(os.Stderr, cockroachNotRun) })

// Cockroach makes an empty database on the CockroachDB cluster at IDEMD_COCKROACH_DSN, dropped at the test's
// end, and returns its connection string. Without a cluster it says so and skips the test.
func Cockroach(t testing.TB) string {
	t.Helper()
	cluster := os.Getenv(cockroachDSN)
	if cluster == "" {
		sayCockroachNotRun()
		t.Skip(cockroachNotRun)
	}
	dsn, err := url.Parse(cluster)
	if err != nil {
		t.Fatalf("%s must be a URL, postgres://user@host:26257/database: %v", cockroachDSN, err)
	}
	// The cluster outlives this process: a name that no earlier run can have left there.
	name := fmt.Sprintf("idemd_test_%d_%d", time.Now().UnixNano(), os.Getpid())
	if err := execute(cluster, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := execute(cluster, "DROP DATABASE "+name+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	dsn.Path = "/" + name
	return dsn.String()
}
