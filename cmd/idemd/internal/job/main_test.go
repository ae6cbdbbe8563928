package job

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Args[0] == WatcherCommand {
		Watch(os.Stdin)
		return
	}
	goleak.VerifyTestMain(m)
}
