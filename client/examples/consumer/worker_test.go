package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemd/idemd/client/internal/natstest"
)

// TestWorkers has two workers carry out events that were all published twice, and one that
// makes no sense: each parcel is shipped once, and logged once as shipped, and the one is a dead letter, with the reason.
func TestWorkers(t *testing.T) {
	const events = 50
	logged := logTo(t)
	url, idemd, dir := natstest.Start(t), startIdemd(t), t.TempDir()
	q, closeQueue, err := openQueue(t.Context(), url, "ORDERS", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeQueue)
	if err := q.publish(t.Context(), "poison", time.Now(), []byte("no json")); err != nil {
		t.Fatal(err)
	}
	var published strings.Builder
	for range 2 {
		if err := run(t.Context(), []string{"--nats", url, "publish", fmt.Sprint(events)}, &published); err != nil {
			t.Fatal(err)
		}
	}
	if want := strings.Repeat("published 50 events: that orders of today were paid\n", 2); published.String() != want {
		t.Errorf("publish printed %q, want %q", &published, want)
	}

	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for range 2 {
		working.Go(func() {
			args := []string{"--nats", url, "--idemd", idemd, "--parcels", filepath.Join(dir, "parcels")}
			if err := run(ctx, args, os.Stderr); err != nil {
				t.Error(err)
			}
		})
	}
	natstest.Until(t, "everything is settled", (&site{q: q}).settled)
	stop()
	working.Wait()

	parcels, err := os.ReadDir(filepath.Join(dir, "parcels"))
	if err != nil || len(parcels) != events {
		t.Errorf("%d parcels (%v), want %d", len(parcels), err, events)
	}
	if n := strings.Count(logged.String(), `msg=shipped `); n != events {
		t.Errorf("%d events are logged as shipped, want %d:\n%s", n, events, logged)
	}
	if where := "parcels=" + filepath.Join(dir, "parcels"); !strings.Contains(logged.String(), where) {
		t.Errorf("no worker logged %s:\n%s", where, logged)
	}
	dead, err := q.stream.OrderedConsumer(t.Context(), "DEAD-ORDERS", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := dead.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Metadata()
	if err != nil || string(m.Data()) != "no json" || m.Headers().Get(headerID) != "poison" || info.NumPending != 0 ||
		!strings.Contains(m.Headers().Get(headerReason), "no order with an address") {
		t.Errorf("the dead letter is %q, %v, and %+v (%v)", m.Data(), m.Headers(), info, err)
	}
}

// logTo has the test read what is logged, once nobody logs any more.
func logTo(t *testing.T) *bytes.Buffer {
	var logged bytes.Buffer
	before, flags := slog.Default(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(os.Stderr) // slog changed these two as well
		log.SetFlags(flags)
	})
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	return &logged
}

// TestMistakes has a command that cannot do what it is asked say why, before it looks for a queue.
func TestMistakes(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"pack", `there is no command "pack": give publish N, or nothing for a worker`},
		{"publish", `publish how many events? Give a number from 1 on, not ""`},
		{"publish ten", `publish how many events? Give a number from 1 on, not "ten"`},
		{"publish 0", `publish how many events? Give a number from 1 on, not "0"`},
		{"publish 1 2", `"2" is one argument too many`},
	} {
		err := run(t.Context(), append([]string{"--nats", "nats://127.0.0.1:1"}, strings.Fields(test.args)...), io.Discard)
		if !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v, want %s", test.args, err, test.want)
		}
	}
}

// A worker without an idemd says where it looked for one.
func TestIdemdAway(t *testing.T) {
	err := run(t.Context(), []string{"--nats", natstest.Start(t), "--idemd", "127.0.0.1:1"}, io.Discard)
	if want := "idemd does not answer on 127.0.0.1:1; start it with: go run ./cmd/idemd serve"; !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A worker does not start where idemd forgets sooner than the queue.
func TestRetentionTooShort(t *testing.T) {
	url, idemd := natstest.Start(t), startIdemd(t)
	c := dial(t, idemd)
	ns, err := c.GetNamespace(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	ns.Retention = 13 * 24 * time.Hour
	if _, err := c.UpdateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	err = run(t.Context(), []string{"--nats", url, "--idemd", idemd}, os.Stderr)
	if want := `namespace "orders" keeps outcomes for 312h0m0s, which answers messages that are up to 311h59m0s old; the queue delivers them for 312h0m0s`; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
