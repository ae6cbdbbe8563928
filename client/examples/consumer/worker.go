package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// worker carries out what comes from the queue.
type worker struct {
	queue    *queue
	consumer *client.Consumer
	settle   func(context.Context, jetstream.Msg, client.Disposition) error // the queue's
}

func newWorker(ctx context.Context, q *queue, s store.Store, ship shipFunc, opts ...client.DoOption) (*worker, error) {
	consumer, err := client.NewConsumer(ctx, s, client.Queue{
		Namespace: "orders", Scope: "ship", MaxAge: oldestDelivery,
	}, handler(ship), opts...)
	return &worker{queue: q, consumer: consumer, settle: q.settle}, err
}

func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil {
		received, err := w.queue.receive()
		w.handle(context.WithoutCancel(ctx), received) // what is begun is finished
		if err != nil {
			slog.Error("nothing comes from the queue; going on", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(fetchWait):
			}
		}
	}
	return nil
}

func (w *worker) handle(ctx context.Context, received []jetstream.Msg) {
	var batch []client.Message
	for _, m := range received {
		batch = append(batch, message(m))
	}
	for i, d := range w.consumer.Consume(ctx, batch) {
		switch {
		case d.Action != client.Ack:
			slog.Warn(d.Action.String(), "event", batch[i].ID, "error", d.Err, "after", d.After)
		case d.Repeat:
			slog.Info("shipped before", "event", batch[i].ID)
		default:
			slog.Info("shipped", "event", batch[i].ID)
		}
		if err := w.settle(ctx, received[i], d); err != nil {
			slog.Error("not settled, so it comes again", "event", batch[i].ID, "error", err)
		}
	}
}
