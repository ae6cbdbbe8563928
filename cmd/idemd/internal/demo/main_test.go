package demo

import (
	"testing"

	"go.uber.org/goleak"
)

// The goroutine that waits for the PostgreSQL of all tests ends with the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/idemd/idemd/store/sqlstore/pgtest.startProcess.func1"))
}
