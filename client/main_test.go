package client

import (
	"testing"

	"go.uber.org/goleak"
)

// No test leaves a goroutine behind: a renewal, a recording, a call.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
