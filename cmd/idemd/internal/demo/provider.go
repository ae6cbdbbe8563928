package demo

import (
	"fmt"
	"slices"
	"time"
)

// The provider is another company: what it promises of keys and of its search is all that is known.
const (
	providerRetention = 24 * time.Hour   // how long it knows a key
	providerLag       = 30 * time.Second // how long until its search finds a charge
	redrive           = 48 * time.Hour   // how long a message waits whose charge got no reply
)

const errNotSearchable = fault("the provider's search did not have the charge yet")

// provider charges cards.
type provider struct {
	*play
	clock   time.Time
	charges []charge
}

type charge struct {
	id, payment    string
	key, reference string // that the shop has sent with it
	at             time.Time
}

// charge charges a payment, unless it knows the key. An empty one is none.
func (p *provider) charge(payment, key, reference string) (id string, err error) {
	if c, found := p.latest(func(c charge) bool { return key != "" && c.key == key }); found && p.clock.Sub(c.at) < providerRetention {
		p.guarded(guardProviderKey, "the provider knew the key, and answered with the first charge")
		return c.id, nil
	}
	c := charge{id: fmt.Sprintf("%s/charge-%d", p.order, len(p.charges)+1), payment: payment, key: key, reference: reference, at: p.clock}
	p.charges = append(p.charges, c)
	if p.breaks(hopProvider) {
		p.clock = p.clock.Add(redrive)
		return "", fault("the reply to its charge was lost; it came from the dead letters two days later")
	}
	return c.id, nil
}

// find looks a charge up by the shop's own reference.
func (p *provider) find(reference string) (id string, found bool, err error) {
	c, found := p.latest(func(c charge) bool { return c.reference == reference })
	if found && p.clock.Sub(c.at) < providerLag {
		return "", false, errNotSearchable
	}
	return c.id, found, nil
}

func (p *provider) latest(is func(charge) bool) (charge, bool) {
	for _, c := range slices.Backward(p.charges) {
		if is(c) {
			return c, true
		}
	}
	return charge{}, false
}
