// Command payments is a gRPC service that charges cards, guarded by idemd: every order is
// charged once, whatever its callers and the network do.
//
//	go run ./client/examples/payments
//
// tells the whole story, first with the guard and then without it: replies are lost, calls
// are sent again in parallel and double-tapped, a key is used for another amount. It needs no
// server: the outcomes are in an embedded store, in a temporary directory. To see the parts
// as processes of their own, each in a terminal:
//
//	go run ./cmd/idemd serve
//	go run ./client/examples/payments server --idemd 127.0.0.1:7600
//	go run ./client/examples/payments caller
//
// # Tour
//
//   - proto/examples/payments/v1: the service; an option of its method says how it is guarded.
//   - server.go: a gRPC server with the guard.
//   - charge.go: the handlers, which know nothing of keys or repeats, and the recover hook.
//   - ledger.go: stands for the provider that takes the money. It never deduplicates.
//   - caller.go: a client that has each call sent again under one key.
//   - story.go: what goes wrong, and what each call was answered.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "payments:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string, out, notes io.Writer) error {
	command, rest := "", args
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, rest = args[0], args[1:]
	}
	switch command {
	case "":
		return runStory(ctx, rest, out)
	case "server":
		return runServer(ctx, rest, out, notes)
	case "caller":
		return runCaller(ctx, rest, out, notes)
	default:
		return fmt.Errorf("there is no command %q: give server, caller, or nothing for the whole story", command)
	}
}

// parse reads flags, and refuses what is left over.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	return nil
}
