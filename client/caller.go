package client

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// A CallerOption sets how [UnaryClientInterceptor] works.
type CallerOption func(*caller)

// CallGuarded names methods that the server guards, for those whose .proto does not say so.
// If such a request holds its key in a field other than request_id, give the call that [Key].
func CallGuarded(methods ...string) CallerOption {
	return func(c *caller) {
		for _, name := range methods {
			c.named[name] = true
		}
	}
}

// TryTimeout bounds each try of a call, so that one whose reply is lost is sent again before
// the caller's deadline. The default is to leave it to the deadline.
func TryTimeout(d time.Duration) CallerOption { return func(c *caller) { c.tryTimeout = d } }

// Key gives one call its key: made once for the intent, and the same on every repeat of it,
// also by another process. Pass it to the call itself; a key that lay in a context would go
// on to the next call.
func Key(id string) grpc.CallOption { return keyOption{id: id} }

type keyOption struct {
	grpc.EmptyCallOption
	id string
}

// UnaryClientInterceptor gives each call of a guarded method one key, and sends the call
// again under that key if its reply may have been lost, or a repeat of it is running: at
// most five times, after pauses that grow, are random and keep to the server's hint, and for
// no more than a tenth of the calls and one a second.
//
// A method is guarded if its .proto says so, or [CallGuarded] does. Calls of other methods
// are sent once. The key is that of [Key], that of the outgoing metadata, or that in the
// request's key field; without one it is drawn for this call alone, which protects against
// lost replies but not against the caller's dying: give the intent a key of its own. A key
// in the outgoing metadata that was merely copied from the incoming call is not taken:
// it names another intent.
func UnaryClientInterceptor(opts ...CallerOption) grpc.UnaryClientInterceptor {
	c := &caller{named: map[string]bool{}}
	for _, opt := range opts {
		opt(c)
	}
	return c.call
}

type caller struct {
	named      map[string]bool // methods of CallGuarded
	methods    sync.Map        // name -> *method
	tryTimeout time.Duration
	budget     retryBudget
}

func (c *caller) call(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m := c.method(name)
	given, opts := takeKey(opts)
	if given != nil {
		ctx = withKey(ctx, given.id)
	} else if m.guarded {
		ctx = keyed(ctx, m, req)
	}
	if !m.guarded {
		return invoker(ctx, name, req, reply, cc, opts...)
	}
	_, _, err := retryIf(ctx, &c.budget, worthCallingAgain, func() (struct{}, error) {
		return struct{}{}, c.try(ctx, name, req, reply, cc, invoker, opts)
	})
	var timedOut *tryTimedOut
	if errors.As(err, &timedOut) {
		return timedOut.error
	}
	return err
}

// try sends the call once.
func (c *caller) try(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts []grpc.CallOption) error {
	if c.tryTimeout <= 0 {
		return invoker(ctx, name, req, reply, cc, opts...)
	}
	trying, cancel := context.WithTimeout(ctx, c.tryTimeout)
	defer cancel()
	err := invoker(trying, name, req, reply, cc, opts...)
	if err != nil && statusOf(err).Code() == codes.DeadlineExceeded {
		return &tryTimedOut{err} // the server may see the deadline pass, and say so, before this process does
	}
	return err
}

// tryTimedOut says that the deadline of a try has passed, or the caller's, after which none
// comes.
type tryTimedOut struct{ error }

func (e *tryTimedOut) Unwrap() error { return e.error }

// takeKey takes the key out of the options of a call: the last one, as with all options;
// nil if there is none.
func takeKey(opts []grpc.CallOption) (key *keyOption, rest []grpc.CallOption) {
	for _, opt := range opts {
		if o, ok := opt.(keyOption); ok {
			key = &o
		} else {
			rest = append(rest, opt)
		}
	}
	return key, rest
}

// method returns what is known of a method.
func (c *caller) method(name string) *method {
	if known, ok := c.methods.Load(name); ok {
		return known.(*method)
	}
	m := &method{name: name, descriptor: describe(name)}
	err := m.declaredInProto()
	m.guarded = m.guarded && err == nil || c.named[name]
	if m.descriptor != nil {
		m.keyField, _ = keyField(m.descriptor.Input(), m.policy.KeyField) // the server says what is wrong with it
	}
	c.methods.Store(name, m)
	return m
}

// keyed returns a context for this call alone that carries its key, unless the request does.
func keyed(ctx context.Context, m *method, req any) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	own := md.Get(MetadataKey)
	copied := len(own) > 0 && slices.Equal(own, metadata.ValueFromIncomingContext(ctx, MetadataKey))
	switch {
	case len(own) > 0 && !copied:
		return ctx
	case m.keyIn(req) == "":
		return withKey(ctx, rand.Text())
	case copied:
		md.Delete(MetadataKey)
		return metadata.NewOutgoingContext(ctx, md)
	default:
		return ctx
	}
}

func withKey(ctx context.Context, id string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(MetadataKey, id)
	return metadata.NewOutgoingContext(ctx, md)
}

// worthCallingAgain reports whether the same call, under the same key, may succeed if it is
// sent again.
func worthCallingAgain(err error) bool {
	var timedOut *tryTimedOut
	if errors.As(err, &timedOut) {
		return true
	}
	st := statusOf(err)
	if madeByIdemd(st) {
		refusal := storepb.FromStatus(err)
		return worthRetrying(refusal) || errors.Is(refusal, store.ErrKeyInProgress) || errors.Is(refusal, store.ErrStaleFence)
	}
	return st.Code() == codes.Unavailable
}
