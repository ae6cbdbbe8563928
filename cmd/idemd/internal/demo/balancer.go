package demo

import (
	"fmt"
	"net/http"
)

// balancer stands before the service.
type balancer struct {
	*play
	service http.Handler
}

// send passes a request on. What got no reply is 502; or, by a broken balancer, sent again.
func (b *balancer) send(r *http.Request) (*answer, error) {
	for range maxTries {
		a, err := call(b.service, r.Clone(r.Context()))
		if err == nil && b.breaks(hopBalancer) {
			err = fault("the reply was lost")
		}
		if err == nil {
			return a, nil
		}
		if !b.broken[hopBalancer] {
			return &answer{status: http.StatusBadGateway}, nil
		}
		if b.guards[guardNeverResend] {
			b.guarded(guardNeverResend, "the balancer left it to the app to send the POST again")
			return &answer{status: http.StatusBadGateway}, nil
		}
		b.repeated(hopBalancer, fmt.Sprintf("sent the POST again, as %v", err))
	}
	return nil, fmt.Errorf("the balancer got no reply in %d tries", maxTries)
}
