package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemd/idemd/client"
)

// An event stays in the stream for keepEvents. It is delivered for the last time if it is put into the stream again, by a
// person, at the end of that.
const (
	keepEvents     = 3 * 24 * time.Hour
	oldestDelivery = 2 * keepEvents
)

// The names by which CloudEvents has a message say which event it is about, and when that was.
const (
	headerID   = "ce-id"
	headerTime = "ce-time"
)

const streamName = "SHOP"

// queue is a stream of events, and what of it was not acknowledged.
type queue struct {
	stream  jetstream.JetStream
	pending jetstream.Consumer
}

// openQueue connects to NATS, and makes what is missing there.
func openQueue(ctx context.Context, servers string) (q *queue, closeQueue func(), err error) {
	conn, err := nats.Connect(servers)
	if malformed := (*url.Error)(nil); errors.As(err, &malformed) {
		err = errors.New("a URL cannot be read") // it may hold a password, and so may what is wrong with it
	}
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to NATS, by --nats: %w", err)
	}
	q = &queue{}
	if q.stream, err = jetstream.New(conn); err == nil {
		err = q.setUp(ctx)
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

func (q *queue) setUp(ctx context.Context) error {
	_, err := q.stream.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{streamName + ".>"}, MaxAge: keepEvents})
	if err != nil {
		return fmt.Errorf("stream %s: %w", streamName, err)
	}
	q.pending, err = q.stream.CreateOrUpdateConsumer(ctx, streamName, jetstream.ConsumerConfig{
		Durable: "receipts", FilterSubject: streamName + ".paid", AckPolicy: jetstream.AckExplicitPolicy,
	})
	return err
}

// Publish sends events on, each under the id that it was stored with. That the stream would drop a repeat which comes soon
// (Nats-Msg-Id, within two minutes) is not used here: it spares a delivery, and guards nothing that comes later.
func (q *queue) Publish(topic string, events ...*message.Message) error {
	for _, event := range events {
		m := nats.NewMsg(streamName + "." + topic)
		m.Data = event.Payload
		m.Header.Set(headerID, event.UUID)
		m.Header.Set(headerTime, event.Metadata.Get(headerTime))
		if _, err := q.stream.PublishMsg(event.Context(), m); err != nil {
			return err
		}
	}
	return nil
}

// Close is a [message.Publisher]'s. The queue is closed by who opened it.
func (q *queue) Close() error { return nil }

// delivered is what the consumer is told of a delivery.
func delivered(m jetstream.Msg) client.Message {
	made, _ := time.Parse(time.RFC3339Nano, m.Headers().Get(headerTime)) // zero is: not known
	return client.Message{ID: m.Headers().Get(headerID), Source: "/shop", Time: made, Body: m.Data()}
}
