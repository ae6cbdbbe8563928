package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// An Option sets how a [Guard] works.
type Option func(*options)

type options struct {
	namespace string
	service   string
	named     bool // even if with nothing
	owner     func(*http.Request) (string, error)
	noOwner   bool
	docs      string
	observe   bool
	notify    func(client.Event)
}

// draft is where the header field is described, for want of the server's own documentation.
const draft = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"

// Owner says who owns the key of a request: the account or customer that the authenticated
// caller acts for, never one that the request merely names. Two owners may use the same key for
// two intents. An error refuses the request with 401; [store.ErrPermissionDenied] with 403 and
// [store.ErrUnavailable] with 503. So authentication goes outside the guard. f may read the body.
func Owner(f func(*http.Request) (string, error)) Option {
	return func(o *options) { o.owner = f }
}

// NoOwner says that all callers share one set of keys, because they are one party.
func NoOwner() Option { return func(o *options) { o.noOwner = true } }

// Namespace sets the namespace of the keys. The default is [store.DefaultNamespace].
func Namespace(name string) Option { return func(o *options) { o.namespace = name } }

// Service sets the name of the service, which the scopes of its keys begin with: "payments POST
// /orders". Services that share a namespace each need one: where two guard the same method and
// pattern, such as a gateway that passes the key on and what is behind it, a key would else be one
// in both, and the one would be answered with the other's response. The default is no name. A name
// is 1 to 63 characters of printable ASCII with no space; another name is another set of keys.
func Service(name string) Option {
	return func(o *options) { o.service, o.named = name, true }
}

// Docs is the address of the documentation that refusals link to: what the server's callers are
// to know of keys, such as how long an outcome answers repeats. The default is the draft's.
func Docs(url string) Option { return func(o *options) { o.docs = url } }

// Observe blocks nothing: every request runs, and what would have been a repeat, a mismatch or
// a double in flight is reported to [OnEvent]. Hold does not count yet. See [client.Observe].
func Observe() Option { return func(o *options) { o.observe = true } }

// OnEvent has what becomes of each guarded request reported to f, for counting. f must be quick,
// and is called by many goroutines at once. See [client.OnEvent].
func OnEvent(f func(client.Event)) Option { return func(o *options) { o.notify = f } }

func newOptions(opts []Option) (*options, error) {
	o := &options{namespace: store.DefaultNamespace, docs: draft}
	for _, opt := range opts {
		opt(o)
	}
	var unowned error
	if (o.owner == nil) == !o.noOwner {
		unowned = errors.New("say who owns the keys: either Owner, or NoOwner if all callers are one party")
	}
	var misnamed error
	if o.named && !isServiceName(o.service) {
		misnamed = fmt.Errorf("service name %q is not 1 to 63 characters of printable ASCII with no space", o.service)
	}
	probe := store.Key{Namespace: o.namespace, ID: "x"}
	return o, errors.Join(unowned, misnamed, probe.Validate())
}

func isServiceName(name string) bool {
	odd := strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })
	return name != "" && len(name) <= 63 && !odd
}
