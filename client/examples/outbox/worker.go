package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// A sendFunc sends a receipt. The key is the same if it is asked again for the same event, after a worker that died.
type sendFunc func(key string, p payment) error

// work has a receipt sent for every event, once, until ctx ends. ../consumer has the same in batches, with dead letters
// in a stream of their own.
func work(ctx context.Context, q *queue, s store.Store, send sendFunc) error {
	consumer, err := client.NewConsumer(ctx, s, client.Queue{Namespace: namespace, Scope: "receipt", MaxAge: oldestDelivery}, handler(send))
	if err != nil {
		return err
	}
	messages, err := q.pending.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		d := consumer.Consume(context.WithoutCancel(ctx), []client.Message{delivered(m)})[0] // what is begun is finished
		if err := settle(m, d); err != nil {
			slog.Error("not settled, so it comes again", "event", delivered(m).ID, "error", err)
		}
	}
}

func handler(send sendFunc) client.Handler {
	return func(_ context.Context, a *client.Attempt, m client.Message) error {
		var p payment
		if err := json.Unmarshal(m.Body, &p); err != nil {
			return client.NoEffect(status.Error(codes.InvalidArgument, "no payment"))
		}
		return send(a.DownstreamKey("receipt"), p)
	}
}

// settle tells the queue what is to be done with a delivery. What it is not told comes again.
func settle(m jetstream.Msg, d client.Disposition) error {
	slog.Info(d.Action.String(), "event", delivered(m).ID, "repeat", d.Repeat, "error", d.Err)
	switch d.Action {
	case client.Ack:
		return m.Ack()
	case client.DeadLetter: // it stays in the stream, to be looked at
		meta, err := m.Metadata()
		if err == nil {
			slog.Error("a dead letter", "stream", meta.Stream, "sequence", meta.Sequence.Stream, "error", d.Err)
		}
		return errors.Join(err, m.Term())
	default:
		return m.NakWithDelay(d.After)
	}
}
