package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

func keyOf(id string) store.Key { return store.Key{Namespace: namespace, Scope: "pay", ID: id} }

// eventOf is the id that the event of an order is stored with that was paid under a key.
func eventOf(id string) string { return key.Downstream(keyOf(id), "paid") }

// TestOnce has an order paid by an attempt that dies after its commit, by the next, by a repeat, and by an app that
// was restarted and made a fresh key; and its event published by a relay that is killed, as kill -9 does, before it
// could delete it, and by the next. There is one payment and one receipt.
func TestOnce(t *testing.T) {
	s := newShop(t)
	_, err := client.Do(t.Context(), s.idemd, keyOf("key-1"), "order-1", func(ctx context.Context, a *client.Attempt) (string, error) {
		_, err := pay(ctx, s.db, a, payment{Order: "order-1", Cents: 4200})
		return "", errors.Join(err, errors.New("killed")) // idemd is told nothing
	})
	if err == nil || err.Error() != "killed" {
		t.Fatal(err)
	}
	for _, id := range []string{"key-1", "key-1", "key-2"} {
		receipt, err := request(t.Context(), s.idemd, s.db, "order-1", id)
		if want := "receipt for order-1, by key-1"; receipt != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", id, receipt, err, want)
		}
	}
	if payments, events := s.count("payments"), s.count("watermill_outbox"); payments != 1 || events != 1 {
		t.Fatalf("%d payments and %d events, want one of each", payments, events)
	}

	s.killRelay()
	if n := s.count("watermill_outbox"); n != 1 {
		t.Fatalf("after the relay was killed there are %d events in the outbox, want 1", n)
	}
	stop := s.startRelay(s.queue, time.Minute)
	s.untilSent()
	stop()

	s.checkPublished(eventOf("key-1"), eventOf("key-1"))
	if sent := s.receipts(); len(sent) != 1 {
		t.Errorf("receipts were sent under %v, want one", sent)
	}
}

// What is rolled back is told to nobody.
func TestRolledBack(t *testing.T) {
	s := newShop(t)
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = insert(t.Context(), tx, &client.Attempt{Key: keyOf("key-1")}, payment{Order: "order-1", Cents: 4200})
	if err := errors.Join(err, tx.Rollback()); err != nil {
		t.Fatal(err)
	}
	if payments, events := s.count("payments"), s.count("watermill_outbox"); payments != 0 || events != 0 {
		t.Errorf("%d payments and %d events, want none", payments, events)
	}
}

// TestBrokerAway has a broker that takes no event for longer than the relay's patience, after it took one. None is lost,
// and they keep their order.
func TestBrokerAway(t *testing.T) {
	s := newShop(t)
	var want []string
	for i := range 4 {
		id := fmt.Sprint("key-", i)
		if _, err := request(t.Context(), s.idemd, s.db, fmt.Sprint("order-", i), id); err != nil {
			t.Fatal(err)
		}
		want = append(want, eventOf(id))
	}
	broker := &awayOnce{queue: s.queue, id: want[1]}
	stop := s.startRelay(broker, 50*time.Millisecond)
	s.untilSent()
	stop()
	s.checkPublished(want...)
	if sent := s.receipts(); len(sent) != len(want) {
		t.Errorf("receipts were sent under %v, want %d", sent, len(want))
	}
}

// awayOnce is a broker that is away when it is given an event for the first time, until the relay gives up.
type awayOnce struct {
	*queue
	id   string
	done bool
}

func (a *awayOnce) Publish(topic string, events ...*message.Message) error {
	if !a.done && events[0].UUID == a.id {
		a.done = true
		<-events[0].Context().Done()
		return context.Cause(events[0].Context())
	}
	return a.queue.Publish(topic, events...)
}

func (s *shop) checkPublished(want ...string) {
	s.Helper()
	var got []string
	for _, m := range s.published() {
		got = append(got, m.Headers().Get(headerID))
		if d := delivered(m); time.Since(d.Time) > time.Hour || d.Time.IsZero() {
			s.Errorf("event %s has the time %v", d.ID, d.Time)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("published were\n%v, want\n%v", got, want)
	}
}

const relayVariable = "IDEMD_TEST_RELAY" // "DSN|NATS"

// killRelay starts this test binary as a relay, and kills it when it says that it has published.
func (s *shop) killRelay() {
	cmd := exec.CommandContext(s.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), relayVariable+"="+s.dsn+"|"+s.nats)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n') // what it said last if it ended
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if line != "published\n" {
		s.Fatalf("the process said %q", line)
	}
}

// relayProcess is the process that is killed: a relay that stands still once it has published.
func relayProcess(plan string) {
	dsn, nats, _ := strings.Cut(plan, "|")
	db, err := sql.Open("pgx", dsn)
	if err == nil {
		err = withQueue(context.Background(), nats, func(q *queue) error {
			return relay{db: db, to: standsStill{q}, patience: time.Minute}.run(context.Background())
		})
	}
	fmt.Println("not killed:", err)
	os.Exit(1)
}

type standsStill struct{ *queue }

func (q standsStill) Publish(topic string, events ...*message.Message) error {
	if err := q.queue.Publish(topic, events...); err != nil {
		return err
	}
	fmt.Println("published")
	<-make(chan struct{}) // until it is killed
	return nil
}
