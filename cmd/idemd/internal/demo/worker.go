package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

const errWorkerDied = fault("the worker had died after the charge")

// worker has the provider charge what messages ask for.
type worker struct {
	*play
	provider *provider
}

// drain delivers each message until it is acknowledged, which it is when receive returns nil.
func (w *worker) drain(ctx context.Context, queue []message) error {
	for _, m := range queue {
		err := again(func() error { return w.receive(ctx, m) }, func(why fault) {
			w.repeated(hopQueue, fmt.Sprintf("delivered message %d again, as %v", m.number, why))
		})
		if err != nil {
			return fmt.Errorf("message %d: %w", m.number, err)
		}
	}
	return nil
}

func (w *worker) receive(ctx context.Context, m message) error {
	err := w.handle(ctx, m)
	if err == nil && w.breaks(hopQueue) {
		return fault("the acknowledgement was lost")
	}
	return err
}

// handle charges, and commits that with the inbox's row.
func (w *worker) handle(ctx context.Context, m message) error {
	return w.db.inTx(ctx, func(tx guard.Tx) error {
		if !w.guards[guardInbox] {
			_, err := w.charge(ctx, tx, m)
			return err
		}
		entry, err := workerInbox.Do(ctx, tx, key.Event("payments", m.id), nil, func() ([]byte, error) {
			charge, err := w.charge(ctx, tx, m)
			return []byte(charge), err
		})
		if entry.Repeat {
			w.guarded(guardInbox, fmt.Sprintf("message %d had been handled", m.number))
		}
		return err
	})
}

// charge asks the provider, and writes down that it did.
func (w *worker) charge(ctx context.Context, tx guard.Tx, m message) (charge string, err error) {
	if intent := chargeOf(m); w.guards[guardLookUp] {
		charge, err = w.chargeOnce(ctx, m, intent)
	} else {
		charge, err = w.ask(m, key.Downstream(intent, "charge"))
	}
	if err != nil {
		return "", err
	}
	if w.breaks(hopWorker) { // if it has not yet, right after the charge
		return "", errWorkerDied
	}
	_, err = paymentStates.Apply(ctx, tx, m.payment, "requested", "charged") // it may be so already, by another message
	return charge, err
}

// chargeOf is the intent to charge what a message asks for.
func chargeOf(m message) store.Key {
	return store.Key{Namespace: namespace, Scope: "charge", ID: key.Event("payments", m.id)}
}

// chargeOnce looks a charge up of which it is not known whether it was made. If that cannot tell it asks again as long as the
// provider knows the key, if it was given one. Else the message comes again, when the provider's search has the charge.
func (w *worker) chargeOnce(ctx context.Context, m message, intent store.Key) (string, error) {
	opts := []client.DoOption{client.Recover(w.lookUp), client.IntentTime(w.tapped)}
	if w.guards[guardProviderKey] {
		opts = append(opts, client.ProviderKeys(providerRetention))
	}
	result, err := client.Do(ctx, w.idemd, intent, m.payment,
		func(_ context.Context, a *client.Attempt) (string, error) { return w.ask(m, a.DownstreamKey("charge")) }, opts...)
	if errors.Is(err, errNotSearchable) {
		w.provider.clock = w.provider.clock.Add(providerLag)
	}
	if result.Replayed {
		w.guarded(guardLookUp, fmt.Sprintf("idemd knew the charge of message %d", m.number))
	}
	return result.Value, err
}

func (w *worker) lookUp(_ context.Context, a *client.Attempt) (string, bool, error) {
	charge, found, err := w.provider.find(a.DownstreamKey("charge"))
	if found {
		w.guarded(guardLookUp, "looked up by the shop's reference, and found; nothing was sent")
	}
	return charge, found, err
}

// ask sends the charge to the provider, with the shop's reference. With the guard that is its key too.
func (w *worker) ask(m message, reference string) (charge string, err error) {
	id := ""
	if w.guards[guardProviderKey] {
		id = reference
	}
	charge, err = w.provider.charge(m.payment, id, reference)
	if err == nil && w.breaks(hopWorker) {
		return "", errWorkerDied
	}
	return charge, err
}
