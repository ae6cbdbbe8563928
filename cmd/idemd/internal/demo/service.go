package demo

import (
	"context"
	"fmt"
	"net/http"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/client/key"
)

// service takes payments: a row for each, and in the same transaction the message to the worker that is
// to charge it.
type service struct {
	*play
	payments int
}

// newService returns the service's handler, guarded or not.
func newService(p *play) (http.Handler, error) {
	mux := http.NewServeMux()
	var pay http.Handler = &service{play: p}
	if p.guards[guardService] {
		g, err := idemhttp.NewGuard(p.idemd, idemhttp.Namespace(namespace), idemhttp.Owner(customer))
		if err != nil {
			return nil, err
		}
		pay = replays{p, g.Handler(pay, idemhttp.Policy{Required: true})}
	}
	mux.Handle("POST /payments", pay)
	return mux, nil
}

// customer is who the authenticated app acts for.
func customer(*http.Request) (string, error) { return "customer-7", nil }

// replays tells of what the guard inside answers itself.
type replays struct {
	*play
	guard http.Handler
}

func (h replays) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.guard.ServeHTTP(w, r)
	if w.Header().Get(idemhttp.HeaderReplayed) == "true" {
		h.guarded(guardService, "idemd knew the key, and answered with the first answer")
	}
}

// ServeHTTP answers with the payment's id.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	payment, err := s.pay(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if s.breaks(hopService) {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, payment)
}

// pay commits the payment and its message; in a guarded call with the row of the attempt's key.
func (s *service) pay(r *http.Request) (payment string, err error) {
	ctx, id := r.Context(), r.Header.Get(idemhttp.HeaderKey)
	err = s.db.inTx(ctx, func(tx guard.Tx) error {
		attempt, ok := client.AttemptFrom(ctx)
		if !ok {
			payment, err = s.enter(ctx, tx, id)
			return err
		}
		entry, err := serviceInbox.Do(ctx, tx, attempt.DownstreamKey("payment"), nil, func() ([]byte, error) {
			payment, err := s.enter(ctx, tx, id)
			return []byte(payment), err
		})
		if entry.Repeat {
			s.guarded(guardService, "the attempt was told to check, and found its key's row, committed with the payment")
		}
		payment = string(entry.Outcome)
		return err
	})
	return payment, err
}

// enter writes the payment and the message, unless the order has its payment.
func (s *service) enter(ctx context.Context, tx guard.Tx, id string) (payment string, err error) {
	if !s.guards[guardBusiness] {
		return s.insert(ctx, tx)
	}
	entry, err := paidOnce.Do(ctx, tx, s.order, id, func() ([]byte, error) {
		payment, err := s.insert(ctx, tx)
		return []byte(payment), err
	})
	if entry.Repeat {
		s.guarded(guardBusiness, "the order had its payment, whatever the key")
	}
	return string(entry.Outcome), err
}

func (s *service) insert(ctx context.Context, tx guard.Tx) (payment string, err error) {
	s.payments++
	payment = fmt.Sprintf("%s/payment-%d", s.order, s.payments)
	if err := exec(ctx, tx, "INSERT INTO payments (id, order_id, state) VALUES ($1, $2, 'requested')", payment, s.order); err != nil {
		return "", err
	}
	return payment, exec(ctx, tx, "INSERT INTO outbox (id, payment, order_id, sent) VALUES ($1, $2, $3, 0)",
		key.Child(payment, "charge"), payment, s.order)
}
