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

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/killtest"
	"github.com/idemd/idemd/client/internal/natstest"
	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// The steps of event 2 of a batch at which a worker is killed.
const (
	stepGranted  = "granted"  // the key is, and nothing was done
	stepActed    = "acted"    // the parcel is shipped, and nobody knows
	stepRecorded = "recorded" // idemd knows, the queue does not
	stepAcked    = "acked"    // the queue knows; not yet what comes after it in the batch
)

const eventsOfBatch = 6

// TestKilledAtEachStep kills a worker at a step in the midst of a batch, as kill -9 does, and
// has another one carry on. Every parcel is shipped once.
func TestKilledAtEachStep(t *testing.T) {
	url, idemd := natstest.Start(t), startIdemd(t)
	var all sync.WaitGroup
	for step, asks := range map[string]int{stepGranted: 1, stepActed: 2, stepRecorded: 1, stepAcked: 1} {
		q, closeQueue, err := openQueue(t.Context(), url, step, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(closeQueue)
		s := &site{q: q, idemd: idemd, dir: t.TempDir()}
		all.Go(func() { // all at once: they wait for leases to end
			if err := s.publish(t.Context()); err != nil {
				t.Error(err)
			}
			if err := killtest.At(t.Context(), "TestWorkerProcess", workerVariable+"="+strings.Join([]string{url, idemd, s.dir, step}, "|"), step); err != nil {
				t.Errorf("%s: %v", step, err)
				return
			}
			w, err := s.worker(t.Context(), dial(t, idemd), "")
			if err != nil {
				t.Error(err)
				return
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var working sync.WaitGroup
			working.Go(func() { _ = w.run(ctx) })
			natstest.Until(t, step+": everything is settled", s.settled)
			stop()
			working.Wait()
			s.check(t, step, asks)
		})
	}
	all.Wait()
}

// site is where a worker works: its queue and the carrier's directory.
type site struct {
	q          *queue
	idemd, dir string
}

func eventID(q *queue, i int) string { return fmt.Sprintf("%s/order-%d/paid", q.name, i) }

func (s *site) publish(ctx context.Context) error {
	for i := range eventsOfBatch {
		body := fmt.Appendf(nil, `{"id": "order-%d", "address": "Main Street %d"}`, i, i)
		if err := s.q.publish(ctx, eventID(s.q, i), time.Now(), body); err != nil {
			return err
		}
	}
	return nil
}

// worker returns one that stands still at a step of event 2.
func (s *site) worker(ctx context.Context, st store.Store, stopAt string) (*worker, error) {
	reached := func(step, id string) {
		if step == stopAt && id == eventID(s.q, 2) {
			fmt.Println("at " + step)
			<-make(chan struct{}) // until it is killed
		}
	}
	events := map[string]string{} // by the key at the carrier
	for i := range eventsOfBatch {
		events[s.downstream(i)] = eventID(s.q, i)
	}
	ship := func(ctx context.Context, key, address string) error {
		reached(stepGranted, events[key])
		if err := appendLine(filepath.Join(s.dir, "asked"), key); err != nil {
			return err
		}
		err := carrier{filepath.Join(s.dir, "parcels")}.ship(ctx, key, address)
		reached(stepActed, events[key])
		return err
	}
	w, err := newWorker(ctx, s.q, st, ship, client.Lease(time.Second))
	if err != nil {
		return nil, err
	}
	w.settle = func(ctx context.Context, m jetstream.Msg, d client.Disposition) error {
		reached(stepRecorded, message(m).ID)
		err := s.q.settle(ctx, m, d)
		reached(stepAcked, message(m).ID)
		return err
	}
	return w, nil
}

// downstream is the key that the carrier gets for event i.
func (s *site) downstream(i int) string {
	return key.Downstream(store.Key{Namespace: "orders", Scope: "ship", ID: key.Event("/orders", eventID(s.q, i))}, "ship")
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

// settled reports whether the queue has nothing left to deliver.
func (s *site) settled() bool {
	info, err := s.q.pending.Info(context.Background())
	return err == nil && info.NumPending == 0 && info.NumAckPending == 0
}

// check counts the parcels, and how often the carrier was asked for that of event 2.
func (s *site) check(t *testing.T, step string, asks int) {
	parcels, err := os.ReadDir(filepath.Join(s.dir, "parcels"))
	if err != nil || len(parcels) != eventsOfBatch {
		t.Errorf("killed when %s: %d parcels (%v), want %d", step, len(parcels), err, eventsOfBatch)
	}
	asked, err := os.ReadFile(filepath.Join(s.dir, "asked"))
	for i := range eventsOfBatch {
		n := strings.Count(string(asked), s.downstream(i))
		if err != nil || n < 1 || n > 2 || (i == 2 && n != asks) {
			t.Errorf("killed when %s: the carrier was asked %d times for event %d (%v); for event 2 want %d", step, n, i, err, asks)
		}
	}
}

const workerVariable = "IDEMD_TEST_WORKER" // "NATS|IDEMD|DIR|STEP"

// TestWorkerProcess is the process that is killed. Run with the other tests it is not one.
func TestWorkerProcess(t *testing.T) {
	args := strings.Split(os.Getenv(workerVariable), "|")
	if len(args) != 4 {
		return
	}
	q, closeQueue, err := openQueue(t.Context(), args[0], args[3], time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQueue()
	s := &site{q: q, dir: args[2]}
	w, err := s.worker(t.Context(), dial(t, args[1]), args[3])
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal("not killed: ", w.run(t.Context()))
}
