package demo

import (
	"context"
	"errors"
	"time"

	"github.com/idemd/idemd/client/guard"
)

// A Result is what became of one order.
type Result struct {
	Payments int // rows in the shop's database
	Charges  int // at the provider
	Receipts int // in the customer's mailbox
	// Repeated says who sent or did something again, and Guarded which guard had a say then, in the order in which
	// it happened.
	Repeated, Guarded []Line
}

// A Line says who did what.
type Line struct{ Who, What string }

// play is the payment of one order, on its way.
type play struct {
	*Stage
	order          string
	broken, guards Set
	fired          Set       // the breaks that have been
	tapped         time.Time // when the intent was made
	result         Result
}

// maxTries bounds what is tried again. No play needs as many.
const maxTries = 10

// fault is the error of what a break has cut off: its text says what happened.
type fault string

func (f fault) Error() string { return string(f) }

// breaks reports whether the hop breaks here and now: each that is broken does, once.
func (p *play) breaks(hop string) bool {
	now := p.broken[hop] && !p.fired[hop]
	if now {
		p.fired[hop] = true
	}
	return now
}

func (p *play) repeated(who, what string) {
	p.result.Repeated = append(p.result.Repeated, Line{who, what})
}

func (p *play) guarded(name, what string) {
	p.result.Guarded = append(p.result.Guarded, Line{name, what})
}

// all takes the payment over its hops, one after the other.
func (p *play) all(ctx context.Context) error {
	service, err := newService(p)
	if err != nil {
		return err
	}
	app := &app{play: p, balancer: &balancer{play: p, service: service}}
	if err := app.pay(ctx); err != nil {
		return err
	}
	messages, err := (&relay{play: p}).run(ctx)
	if err != nil {
		return err
	}
	provider := &provider{play: p, clock: p.tapped}
	if err := (&worker{p, provider}).drain(ctx, messages); err != nil {
		return err
	}
	mail := &mail{play: p}
	if err := (&webhook{p, mail}).drain(ctx, provider.charges); err != nil {
		return err
	}
	return p.count(ctx, len(provider.charges), mail.sent)
}

// again does something until it succeeds, and tells each time why it is done again. What fails for another reason than a
// fault ends the play.
func again(do func() error, tell func(why fault)) (err error) {
	for range maxTries {
		var why fault
		if err = do(); !errors.As(err, &why) {
			return err
		}
		tell(why)
	}
	return err
}

// count counts what there is in the end.
func (p *play) count(ctx context.Context, charges, receipts int) error {
	p.result.Charges, p.result.Receipts = charges, receipts
	return p.db.inTx(ctx, func(tx guard.Tx) error {
		_, err := query(ctx, tx, "SELECT count(*) FROM payments WHERE order_id = $1", []any{p.order}, &p.result.Payments)
		return err
	})
}
