package demo

import (
	"context"
	"fmt"
	"net/http"

	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/client/key"
)

// app is the customer's: one tap, which is to be one payment.
type app struct {
	*play
	balancer *balancer
}

func (a *app) pay(ctx context.Context) error {
	id := key.New()
	if err := a.ask(ctx, id); err != nil {
		return err
	}
	if !a.breaks(hopApp) {
		return nil
	}
	if a.guards[guardKeptKey] {
		a.repeated(hopApp, "asked again under the same key, as it was restarted before it saw the answer")
		a.guarded(guardKeptKey, "the key was kept with the order, and is sent again")
	} else {
		id = key.New()
		a.repeated(hopApp, "asked again under a fresh key, as it was restarted before it saw the answer")
	}
	return a.ask(ctx, id)
}

// ask sends the request until it is answered.
func (a *app) ask(ctx context.Context, id string) error {
	for range maxTries {
		answer, err := a.send(ctx, id)
		switch {
		case err != nil:
			return err
		case answer.status == http.StatusCreated:
			return nil
		case answer.status != http.StatusBadGateway:
			return fmt.Errorf("the service answered %d: %s", answer.status, answer.body.String())
		}
		a.repeated(hopApp, "asked again under the same key, as it got 502")
	}
	return fmt.Errorf("the app got no answer in %d tries", maxTries)
}

func (a *app) send(ctx context.Context, id string) (*answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop/payments?order="+a.order, http.NoBody)
	if err != nil {
		return nil, err
	}
	if err := idemhttp.SetKey(r, id); err != nil {
		return nil, err
	}
	return a.balancer.send(r)
}
