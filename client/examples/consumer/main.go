// Command consumer is a worker that takes paid orders from a queue, NATS JetStream, which
// delivers each at least once, and has each shipped once.
//
//	nats-server --jetstream --addr 127.0.0.1
//	go run ./cmd/idemd serve
//	go run ./cmd/idemd namespace create orders --retention 15d
//	go run ./client/examples/consumer publish 10   # as often as you like: the events are the same
//	go run ./client/examples/consumer              # as many as you like
//
// # Tour
//
//   - worker.go: from the queue to the consumer of package client, and its dispositions back.
//   - ship.go: the handler, which knows nothing of deliveries.
//   - carrier.go: stands for the company that takes parcels. It knows the keys that it was given.
//   - queue.go: the streams, the events in them, and the dead letters.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:], os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "consumer:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("consumer", flag.ContinueOnError)
	flags.SetOutput(out)
	natsURL := flags.String("nats", nats.DefaultURL, "where NATS serves")
	idemd := flags.String("idemd", "127.0.0.1:7600", "where idemd serves")
	parcels := flags.String("parcels", filepath.Join(os.TempDir(), "idemd-example-parcels"), "the carrier's `directory`: a file for each parcel")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch flags.Arg(0) {
	case "publish":
		n, err := howMany(flags.Args()[1:])
		if err != nil {
			return err
		}
		return withQueue(ctx, *natsURL, func(q *queue) error { return publish(ctx, q, n, out) })
	case "":
		return withQueue(ctx, *natsURL, func(q *queue) error { return work(ctx, q, *idemd, *parcels) })
	default:
		return fmt.Errorf("there is no command %q: give publish N, or nothing for a worker", flags.Arg(0))
	}
}

// howMany reads the arguments of publish.
func howMany(args []string) (int, error) {
	if len(args) > 1 {
		return 0, fmt.Errorf("%q is one argument too many: give publish N", args[1])
	}
	given := strings.Join(args, "")
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("publish how many events? Give a number from 1 on, not %q", given)
	}
	return n, nil
}

func withQueue(ctx context.Context, url string, f func(*queue) error) error {
	q, closeQueue, err := openQueue(ctx, url, "ORDERS", 30*time.Second)
	if err != nil {
		return err
	}
	defer closeQueue()
	return f(q)
}

func publish(ctx context.Context, q *queue, n int, out io.Writer) error {
	if err := q.publishOrders(ctx, n); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "published %d events: that orders of today were paid\n", n)
	return err
}

// work consumes until ctx ends, and then finishes what it has begun.
func work(ctx context.Context, q *queue, idemd, parcels string) (err error) {
	c, err := client.Dial(idemd)
	if err != nil {
		return err
	}
	defer func() {
		draining, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Drain(draining), c.Close())
	}()
	w, err := newWorker(ctx, q, c, carrier{dir: parcels}.ship)
	if errors.Is(err, store.ErrUnavailable) {
		return fmt.Errorf("idemd does not answer on %s; start it with: go run ./cmd/idemd serve (%w)", idemd, err)
	}
	if err != nil {
		return err
	}
	slog.Info("consuming", "stream", q.name, "parcels", parcels)
	return w.run(ctx)
}
