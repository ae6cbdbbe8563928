package demo

import (
	"fmt"
	"slices"
	"strings"
)

// A Name is that of a hop that breaks, or of a guard, with what it does.
type Name struct{ Name, What string }

// The hops.
const (
	hopApp      = "app"
	hopBalancer = "balancer"
	hopService  = "service"
	hopRelay    = "relay"
	hopQueue    = "queue"
	hopWorker   = "worker"
	hopProvider = "provider"
	hopWebhook  = "webhook"
	hopMail     = "mail"
)

// Breaks are the hops that break, and how, in the order of the payment's way.
var Breaks = []Name{
	{hopApp, "restarts before it has seen the answer, and asks again under a fresh key"},
	{hopBalancer, "loses a reply of the service, and sends the POST again"},
	{hopService, "dies after it has committed the payment, before it has answered"},
	{hopRelay, "dies after it has published a message of the outbox, before it has marked it as sent"},
	{hopQueue, "loses the worker's acknowledgement, and delivers the message again"},
	{hopWorker, "dies after the charge, before it has committed its own row"},
	{hopProvider, "charges, its reply is lost, and it has forgotten the key when the message comes again, two days later"},
	{hopWebhook, "its reply is lost, and the provider sends the event again"},
	{hopMail, "the process dies after the mail has gone out, before it has answered the event"},
}

// The guards.
const (
	guardKeptKey     = "kept-key"
	guardNeverResend = "never-resend"
	guardService     = "service"
	guardBusiness    = "business"
	guardOutbox      = "outbox"
	guardInbox       = "inbox"
	guardProviderKey = "provider-key"
	guardLookUp      = "look-up"
	guardWebhook     = "webhook"
	guardMail        = "mail"
)

// Guards are the guards, in the order of the payment's way.
var Guards = []Name{
	{guardKeptKey, "the app keeps its key with the order, and sends the same after a restart"},
	{guardNeverResend, "the balancer never sends a POST again, and answers 502"},
	{guardService, "idemd's guard for HTTP, and an Inbox in the service's transaction, by the app's key"},
	{guardBusiness, "Once: one payment per order, under any key"},
	{guardOutbox, "a message is published under the id that was stored with the payment, not one made while publishing"},
	{guardInbox, "an Inbox in the worker's transaction, by the message's id"},
	{guardProviderKey, "a key for the provider, derived from the message's id"},
	{guardLookUp, "client.Do around the charge, with Recover (and ProviderKeys, if there is a provider-key): what the provider may have forgotten is looked up by the shop's reference, and never sent blind"},
	{guardWebhook, "an Inbox by the event's id; the mail goes out after its commit"},
	{guardMail, "client.Do with RecordFirst: a receipt per payment is recorded, then sent"},
}

// Set holds the names that are chosen.
type Set map[string]bool

// Choose returns the set of what is named: names of from, or "all" or "none" alone. An error says
// which names there are.
func Choose(from []Name, names []string) (Set, error) {
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("it is empty: name some of %s; or say all or none", strings.Join(namesOf(from), ", "))
	case slices.Equal(names, []string{"none"}):
		return Set{}, nil
	case slices.Equal(names, []string{"all"}):
		return setOf(namesOf(from)...), nil
	}
	for _, name := range names {
		if !slices.Contains(namesOf(from), name) {
			return nil, fmt.Errorf("%q is none of %s; or say all or none, alone", name, strings.Join(namesOf(from), ", "))
		}
	}
	return setOf(names...), nil
}

func setOf(names ...string) Set {
	s := Set{}
	for _, name := range names {
		s[name] = true
	}
	return s
}

func namesOf(list []Name) []string {
	names := make([]string, len(list))
	for i, n := range list {
		names[i] = n.Name
	}
	return names
}
