package demo

import (
	"context"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// mail sends receipts, which nobody can look up or take back.
type mail struct {
	*play
	sent int
}

// receipt sends one; with the guard once per payment.
func (m *mail) receipt(ctx context.Context, payment string) error {
	if !m.guards[guardMail] {
		return m.send()
	}
	intent := store.Key{Namespace: namespace, Scope: "receipt", ID: key.Child(payment, "receipt")}
	result, err := client.Do(ctx, m.idemd, intent, payment,
		func(context.Context, *client.Attempt) (string, error) { return "sent", m.send() },
		client.RecordFirst("sent"))
	if result.Replayed {
		m.guarded(guardMail, "the payment's receipt had been recorded")
	}
	return err
}

func (m *mail) send() error {
	m.sent++
	if m.breaks(hopMail) {
		return fault("the process had died after the mail went out")
	}
	return nil
}
