// Command idemd serves idempotency over gRPC, and asks a running server from the command
// line. It is a thin main around [program]; there is one file per subcommand.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/idemd/idemd/cmd/idemd/internal/job"
)

func main() {
	if job.Help(os.Args) {
		return
	}
	// The first signal asks for an orderly end. By then the second one meets the default
	// handling again, and ends the process at once.
	signalled, restore := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	context.AfterFunc(signalled, func() {
		restore()
		cancel()
	})

	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	p := program{name: calledAs(), exe: exe, tune: tune, exit: os.Exit}
	os.Exit(p.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// tune makes a server of this process, as far as the user has not chosen otherwise.
//
// One goroutine more than there are cores may run: one is nearly always inside a sync of
// the disk, and keeps its place for a while though it needs no core. On two cores that is
// worth a quarter of the throughput. Garbage is collected when there is four times as
// much as is in use, since little is: that is worth a sixth, and takes some 100 MB.
func tune() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// calledAs is what the user has to type to run this program again.
func calledAs() string {
	exe, err := os.Executable()
	if err == nil && strings.Contains(exe, string(filepath.Separator)+"go-build") {
		return "go run ./cmd/idemd" // a binary that `go run` made and will remove
	}
	return os.Args[0]
}
