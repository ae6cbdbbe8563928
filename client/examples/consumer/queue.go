package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemd/idemd/client"
)

// How long the streams keep messages. An event is delivered for the last time when it was in the
// queue, among the dead letters, and in the queue again, each time for as long as it is kept.
const (
	keepMessages    = 3 * 24 * time.Hour
	keepDeadLetters = 7 * 24 * time.Hour
	oldestDelivery  = keepMessages + keepDeadLetters + keepMessages
)

// lastChance is how long before the stream drops a message it becomes a dead letter, however often it was to be retried.
const lastChance = time.Hour

// fetchWait is how long to wait until a batch is full.
const fetchWait = 500 * time.Millisecond

// The names by which CloudEvents has a message say which event it is about: id within source.
const (
	headerID     = "ce-id"
	headerSource = "ce-source"
	headerTime   = "ce-time"
	headerReason = "dead-letter-reason"
)

// order is the body of an event.
type order struct {
	ID      string `json:"id"`
	Address string `json:"address"`
}

// queue is a stream of events, one of dead letters, and what of the first was not acknowledged.
type queue struct {
	name    string
	stream  jetstream.JetStream
	pending jetstream.Consumer
}

// openQueue connects to NATS, and makes what is missing there. What was not acknowledged within
// ackWait is delivered again: it should be longer than a batch takes, or that is in vain.
func openQueue(ctx context.Context, servers, name string, ackWait time.Duration) (q *queue, closeQueue func(), err error) {
	conn, err := nats.Connect(servers)
	if malformed := (*url.Error)(nil); errors.As(err, &malformed) {
		err = errors.New("a URL cannot be read") // it may hold a password, and so may what is wrong with it
	}
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to NATS, by --nats: %w", err)
	}
	q = &queue{name: name}
	if q.stream, err = jetstream.New(conn); err == nil {
		err = q.setUp(ctx, ackWait)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return q, func() {
		_ = conn.FlushTimeout(time.Second) // what was acknowledged last goes out
		conn.Close()
	}, nil
}

func (q *queue) setUp(ctx context.Context, ackWait time.Duration) error {
	_, err := q.stream.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: q.name, Subjects: []string{q.name + ".>"}, MaxAge: keepMessages})
	if err != nil {
		return fmt.Errorf("stream %s: %w", q.name, err)
	}
	dead := "DEAD-" + q.name
	if _, err = q.stream.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: dead, Subjects: []string{dead + ".>"}, MaxAge: keepDeadLetters}); err != nil {
		return fmt.Errorf("stream %s: %w", dead, err)
	}
	q.pending, err = q.stream.CreateOrUpdateConsumer(ctx, q.name, jetstream.ConsumerConfig{
		Durable: "shipping", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
	})
	return err
}

// publishOrders publishes that n orders of today were paid: the same events, whenever it does.
func (q *queue) publishOrders(ctx context.Context, n int) error {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for i := range n {
		o := order{ID: fmt.Sprintf("%s-%d", today.Format(time.DateOnly), i), Address: fmt.Sprint("Main Street ", i)}
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if err := q.publish(ctx, o.ID+"/paid", today, body); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) publish(ctx context.Context, id string, made time.Time, body []byte) error {
	m := nats.NewMsg(q.name + ".paid")
	m.Data = body
	m.Header.Set(headerID, id)
	m.Header.Set(headerSource, "/orders")
	m.Header.Set(headerTime, made.Format(time.RFC3339Nano))
	_, err := q.stream.PublishMsg(ctx, m)
	return err
}

// receive waits for messages, and returns those that came.
func (q *queue) receive() ([]jetstream.Msg, error) {
	fetched, err := q.pending.Fetch(32, jetstream.FetchMaxWait(fetchWait))
	if err != nil {
		return nil, err
	}
	var batch []jetstream.Msg
	for m := range fetched.Messages() {
		batch = append(batch, m)
	}
	return batch, fetched.Error()
}

// message is what the consumer is told of a delivery. Without a time of its producer it is
// that at which the stream stored it, which is the same on every delivery, too.
func message(m jetstream.Msg) client.Message {
	h := m.Headers()
	made, err := time.Parse(time.RFC3339Nano, h.Get(headerTime))
	if meta, noMeta := m.Metadata(); err != nil && noMeta == nil {
		made = meta.Timestamp
	}
	return client.Message{ID: h.Get(headerID), Source: h.Get(headerSource), Time: made, Body: m.Data()}
}

// settle tells the queue what is to be done with a delivery. What it is not told comes again.
func (q *queue) settle(ctx context.Context, m jetstream.Msg, d client.Disposition) error {
	switch {
	case d.Action == client.Ack:
		return m.Ack()
	case d.Action == client.DeadLetter, atLast(m):
		if err := q.bury(ctx, m, d.Err); err != nil { // first: then nothing is lost
			return errors.Join(err, m.NakWithDelay(time.Second))
		}
		return m.Term() // with a reason, NATS before 2.10.4 would not terminate it
	default:
		return m.NakWithDelay(d.After)
	}
}

// atLast reports whether the stream soon drops a message. What fails until then, or was in the queue while idemd or the
// carrier was away, ends among the dead letters. A number of deliveries (MaxDeliver) would not do: an idemd that is away
// for minutes uses any up, and then the message lies in the stream, delivered to nobody, until that drops it.
func atLast(m jetstream.Msg) bool {
	meta, err := m.Metadata()
	return err == nil && time.Since(meta.Timestamp) > keepMessages-lastChance
}

// bury publishes a dead letter: the message, with its headers and why it is one.
func (q *queue) bury(ctx context.Context, m jetstream.Msg, why error) error {
	dead := nats.NewMsg("DEAD-" + m.Subject())
	dead.Data = m.Data()
	for name, values := range m.Headers() {
		if !strings.HasPrefix(name, "Nats-") { // these tell NATS what to do: by its id, a second dead letter would not be stored
			dead.Header[name] = values
		}
	}
	dead.Header.Set(headerReason, reason(why))
	_, err := q.stream.PublishMsg(ctx, dead)
	if err != nil { // with the reason it may be larger than NATS takes
		dead.Header.Del(headerReason)
		_, err = q.stream.PublishMsg(ctx, dead)
	}
	return err
}

// reason is the beginning of an error. What runs here makes long ones, and NATS takes 64 KiB of headers.
func reason(why error) string {
	text := fmt.Sprint(why)
	return strings.ToValidUTF8(text[:min(len(text), 1024)], "")
}
