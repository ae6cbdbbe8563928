package idemhttp_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if step, ok := os.LookupEnv(killVariable); ok {
		beKilled(step)
		return
	}
	goleak.VerifyTestMain(m)
}
