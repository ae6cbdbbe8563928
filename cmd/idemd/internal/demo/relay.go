package demo

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/client/key"
)

// message asks the worker to charge a payment.
type message struct {
	id, payment string
	number      int // for who reads of it
}

// relay publishes what is in the outbox, and marks it as sent.
type relay struct {
	*play
	queue []message
}

// run publishes until nothing is left to be sent, and returns the queue.
func (r *relay) run(ctx context.Context) ([]message, error) {
	for range maxTries {
		stored, found, err := r.next(ctx)
		if err != nil || !found {
			return r.queue, err
		}
		r.publish(stored)
		if r.breaks(hopRelay) {
			r.repeated(hopRelay, fmt.Sprintf("published message %d again, as it had died before it marked it as sent", len(r.queue)))
			if r.guards[guardOutbox] {
				r.guarded(guardOutbox, "it was published again under the same id")
			}
			continue
		}
		if err := r.mark(ctx, stored.id); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the outbox is not empty after %d messages", maxTries)
}

// next is the oldest message that is not marked.
func (r *relay) next(ctx context.Context) (m message, found bool, err error) {
	err = r.db.inTx(ctx, func(tx guard.Tx) error {
		found, err = query(ctx, tx, "SELECT id, payment FROM outbox WHERE order_id = $1 AND sent = 0 ORDER BY payment LIMIT 1",
			[]any{r.order}, &m.id, &m.payment)
		return err
	})
	return m, found, err
}

// publish puts a message into the queue; without the guard under an id that it makes for that.
func (r *relay) publish(m message) {
	if !r.guards[guardOutbox] {
		m.id = key.New()
	}
	m.number = len(r.queue) + 1
	r.queue = append(r.queue, m)
}

func (r *relay) mark(ctx context.Context, id string) error {
	return r.db.inTx(ctx, func(tx guard.Tx) error { return exec(ctx, tx, "UPDATE outbox SET sent = 1 WHERE id = $1", id) })
}
