package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/natstest"
)

func testQueue(t *testing.T, url, name string) *queue {
	t.Helper()
	q, closeQueue, err := openQueue(t.Context(), url, name, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeQueue)
	return q
}

// next receives one message.
func (q *queue) next(t *testing.T) jetstream.Msg {
	t.Helper()
	m, err := q.pending.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// theDeadLetter returns the only one.
func (q *queue) theDeadLetter(t *testing.T) *jetstream.RawStreamMsg {
	t.Helper()
	dead, err := q.stream.Stream(t.Context(), "DEAD-"+q.name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := dead.Info(t.Context())
	if err != nil || info.State.Msgs != 1 || !(&site{q: q}).settled() {
		t.Fatalf("dead letters: %+v (%v), settled: %v; want one, of a message that does not come again", info.State, err, (&site{q: q}).settled())
	}
	m, err := dead.GetMsg(t.Context(), info.State.LastSeq)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDeadLetterArrives has dead letters of messages whose headers mean something to NATS, or that are as large as
// it takes them; and each is redriven, and a dead letter again.
func TestDeadLetterArrives(t *testing.T) {
	url := natstest.Start(t)
	poison := client.Disposition{Action: client.DeadLetter, Err: errors.New("no such order\n" + strings.Repeat("ü", 100_000))}
	for name, test := range map[string]struct {
		header, value string
		size          int
		reason        bool
	}{
		"plain":         {size: 10, reason: true},
		"stream":        {header: "Nats-Expected-Stream", value: "stream", size: 10, reason: true},
		"last-sequence": {header: "Nats-Expected-Last-Sequence", value: "0", size: 10, reason: true},
		"id":            {header: "Nats-Msg-Id", value: "7", size: 10, reason: true},
		"large":         {size: 1<<20 - 2000, reason: true},
		"largest":       {size: 1<<20 - len("NATS/1.0\r\nce-id: largest\r\n\r\n")},
		"many-headers":  {header: "trace", value: strings.Repeat("t", 1<<16-100), size: 10},
	} {
		t.Run(name, func(t *testing.T) {
			q := testQueue(t, url, name)
			m := nats.NewMsg(name + ".paid")
			m.Data = make([]byte, test.size)
			m.Header.Set(headerID, name)
			if test.header != "" {
				m.Header.Set(test.header, test.value)
			}
			for range 2 {
				ack, err := q.stream.PublishMsg(t.Context(), m)
				if err != nil || ack.Duplicate {
					t.Fatal(ack, err)
				}
				if err := q.settle(t.Context(), q.next(t), poison); err != nil {
					t.Fatal(err)
				}
				natstest.Until(t, "it is settled", (&site{q: q}).settled)
				dead := q.theDeadLetter(t)
				if dead.Header.Get(headerID) != name || len(dead.Data) != test.size {
					t.Errorf("%v, and %d bytes", dead.Header, len(dead.Data))
				}
				if why := dead.Header.Get(headerReason); strings.HasPrefix(why, "no such order") != test.reason {
					t.Errorf("the reason is %.20q", why)
				}
				of, err := q.stream.Stream(t.Context(), "DEAD-"+name)
				if err != nil {
					t.Fatal(err)
				}
				if err := of.DeleteMsg(t.Context(), dead.Sequence); err != nil {
					t.Fatal(err)
				}
				m.Header, m.Data = dead.Header, dead.Data // as an operator may
			}
		})
	}
}

// aged is a delivery of a message that the stream has had for a while.
type aged struct {
	jetstream.Msg
	age time.Duration
}

func (a aged) Metadata() (*jetstream.MsgMetadata, error) {
	meta, err := a.Msg.Metadata()
	if err == nil {
		meta.Timestamp = time.Now().Add(-a.age)
	}
	return meta, err
}

// TestNothingIsDropped has a message retried for as long as the queue keeps it.
func TestNothingIsDropped(t *testing.T) {
	url := natstest.Start(t)
	q := testQueue(t, url, "LATE")
	if err := q.publish(t.Context(), "1", time.Now(), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	retry := client.Disposition{Err: errors.New("the carrier does not answer")}
	ctx := context.Background()
	for _, age := range []time.Duration{0, keepMessages - 2*time.Hour} {
		if err := q.settle(ctx, aged{q.next(t), age}, retry); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.settle(ctx, aged{q.next(t), keepMessages - time.Minute}, retry); err != nil {
		t.Fatal(err)
	}
	natstest.Until(t, "it is settled", (&site{q: q}).settled)
	if dead := q.theDeadLetter(t); dead.Header.Get(headerReason) != "the carrier does not answer" || dead.Header.Get(headerID) != "1" {
		t.Errorf("%v", dead.Header)
	}
}

// An error tells nobody the password that a URL has, whether it can be read or not.
func TestOpenQueueKeepsSecrets(t *testing.T) {
	for _, servers := range []string{"nats://user:secret@127.0.0.1:1,nats://secret@127.0.0.1:2", "nats://user:secret/@127.0.0.1:1"} {
		_, _, err := openQueue(t.Context(), servers, "ORDERS", time.Second)
		if text := fmt.Sprint(err); !strings.HasPrefix(text, "connecting to NATS") || strings.Contains(text, "secret") {
			t.Errorf("%s: %v", servers, err)
		}
	}
}
