package main

import (
	"context"
	"fmt"
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
// makes no sense: each parcel is shipped once, and the one is a dead letter, with the reason.
func TestWorkers(t *testing.T) {
	const events = 50
	url, idemd, dir := natstest.Start(t), startIdemd(t), t.TempDir()
	q, closeQueue, err := openQueue(t.Context(), url, "ORDERS", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeQueue)
	if err := q.publish(t.Context(), "poison", time.Now(), []byte("no json")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := q.publishOrders(t.Context(), events); err != nil {
			t.Fatal(err)
		}
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
