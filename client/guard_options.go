package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idemd/idemd/store"
)

// A GuardOption sets how a [Guard] works.
type GuardOption interface{ applyGuard(*guardOptions) }

type guardOption func(*guardOptions)

func (f guardOption) applyGuard(o *guardOptions) { f(o) }

type guardOptions struct {
	namespace string
	owner     func(context.Context) (string, error)
	noOwner   bool
	methods   map[string]Policy
	recovers  map[string]RecoverHook
	unguarded map[string]bool
	replay    []string
	observe   bool
	notify    func(Event)
}

// Owner says who owns the key of a call: the account or customer that the authenticated
// caller acts for, never one that the request merely names. Two owners may use the same
// key for two intents. An error refuses the call: with its gRPC status, or UNAUTHENTICATED.
func Owner(f func(ctx context.Context) (string, error)) GuardOption {
	return guardOption(func(o *guardOptions) { o.owner = f })
}

// NoOwner says that all callers share one set of keys, because they are one party.
func NoOwner() GuardOption {
	return guardOption(func(o *guardOptions) { o.noOwner = true })
}

// Namespace sets the namespace of the keys. The default is store.DefaultNamespace.
func Namespace(name string) GuardOption {
	return guardOption(func(o *guardOptions) { o.namespace = name })
}

// Method guards a method, named like "/pay.v1.Payments/Charge". It wins over what the
// .proto declares, as a whole: nothing that is declared there counts then. To add a recover
// hook to what is declared, use [RecoverMethod].
func Method(name string, policy Policy) GuardOption {
	return guardOption(func(o *guardOptions) { o.methods[name] = policy })
}

// RecoverMethod adds a recover hook, made by [RecoverCall], to a method that its .proto or
// [Method] declares as guarded; the rest of its policy stays.
func RecoverMethod(name string, hook RecoverHook) GuardOption {
	return guardOption(func(o *guardOptions) { o.recovers[name] = hook })
}

// Unguarded declares methods that need no guard, so that [Guard.Verify] accepts them.
func Unguarded(names ...string) GuardOption {
	return guardOption(func(o *guardOptions) {
		for _, name := range names {
			o.unguarded[name] = true
		}
	})
}

// ReplayMetadata lists the response headers and trailers that a repeat gets as well.
// Without it there are none. Credentials cannot be listed. Metadata with which an outcome
// is too large to store is left out. With the option, grpc.SetSendCompressor and
// grpc.ClientSupportedCompressors work in interceptors outside the guard only: inside, the
// transport they look for is behind the guard, which sees what is set.
func ReplayMetadata(names ...string) GuardOption {
	return guardOption(func(o *guardOptions) {
		for _, name := range names {
			o.replay = append(o.replay, strings.ToLower(name))
		}
	})
}

// Observe blocks nothing: every call runs, and what would have been a repeat, a mismatch
// or a double in flight is reported to [OnEvent]. It is how to start with a service that
// exists. A policy's Hold does not count yet: keys that lapse would pile up for a person to
// settle, of calls that nobody held back.
func Observe() GuardOption {
	return guardOption(func(o *guardOptions) { o.observe = true })
}

func newGuardOptions(opts []GuardOption) *guardOptions {
	o := &guardOptions{namespace: store.DefaultNamespace, methods: map[string]Policy{}, recovers: map[string]RecoverHook{}, unguarded: map[string]bool{}}
	for _, opt := range opts {
		opt.applyGuard(o)
	}
	return o
}

// check returns what is wrong with the options as a whole.
func (o *guardOptions) check() error {
	var errs []error
	if (o.owner == nil) == !o.noOwner {
		errs = append(errs, errors.New("say who owns the keys: either Owner, or NoOwner if all callers are one party"))
	}
	for _, name := range o.replay {
		if err := checkReplayed(name); err != nil {
			errs = append(errs, err)
		}
	}
	for name := range o.methods {
		if o.unguarded[name] {
			errs = append(errs, fmt.Errorf("method %s is given both to Method and to Unguarded", name))
		}
	}
	probe := store.Key{Namespace: o.namespace, ID: "x"}
	if err := probe.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// neverReplayed holds credentials: they are made for one caller and must not be stored.
var neverReplayed = []string{"set-cookie", "cookie", "authorization", "proxy-authorization", "www-authenticate", "proxy-authenticate"}

func checkReplayed(name string) error {
	switch {
	case slices.Contains(neverReplayed, name):
		return fmt.Errorf("%s holds a credential, and is never stored", name)
	case name == MetadataReplayed, name == MetadataNotRecorded, name == MetadataGuarded, name == MetadataUnknown, name == MetadataEnd:
		return fmt.Errorf("%s belongs to the guard itself", name)
	case strings.HasPrefix(name, "grpc-"), strings.HasPrefix(name, ":"), name == "content-type":
		return fmt.Errorf("%s belongs to gRPC itself", name)
	default:
		return nil
	}
}
