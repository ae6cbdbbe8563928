package guard_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// No test leaves a goroutine behind. The one that waits for the PostgreSQL of all tests ends with the process.
func TestMain(m *testing.M) {
	if plan := os.Getenv(childPlan); plan != "" {
		child(plan)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/idemd/idemd/store/sqlstore/pgtest.startProcess.func1"))
}
