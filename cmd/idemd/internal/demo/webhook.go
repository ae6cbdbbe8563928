package demo

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/client/key"
)

// webhook is told by the provider of its charges, one event for each, and has a receipt sent.
type webhook struct {
	*play
	mail *mail
}

// drain delivers an event of each charge until it is answered, which it is when receive returns nil.
func (w *webhook) drain(ctx context.Context, charges []charge) error {
	for i, c := range charges {
		err := again(func() error { return w.receive(ctx, c) }, func(why fault) {
			w.repeated(hopProvider, fmt.Sprintf("sent the event of charge %d again, as %v", i+1, why))
		})
		if err != nil {
			return fmt.Errorf("the event of charge %d: %w", i+1, err)
		}
	}
	return nil
}

// receive commits that the payment is paid, then has the receipt sent: one that dies in between loses it, and does
// not send it twice.
func (w *webhook) receive(ctx context.Context, c charge) error {
	repeat := false
	err := w.db.inTx(ctx, func(tx guard.Tx) error {
		paid := func() ([]byte, error) {
			_, err := paymentStates.Apply(ctx, tx, c.payment, "charged", "paid") // it may be paid already, by another charge
			return nil, err
		}
		if !w.guards[guardWebhook] {
			_, err := paid()
			return err
		}
		entry, err := webhookInbox.Do(ctx, tx, key.Event("provider", c.id), nil, paid)
		repeat = entry.Repeat
		return err
	})
	switch {
	case err != nil:
		return err
	case repeat:
		w.guarded(guardWebhook, "the event had been handled")
	default:
		err = w.mail.receipt(ctx, c.payment)
	}
	if err == nil && w.breaks(hopWebhook) {
		return fault("the reply to it was lost")
	}
	return err
}
