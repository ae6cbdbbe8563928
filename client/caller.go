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
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// A CallerOption sets how [UnaryClientInterceptor] works.
type CallerOption func(*caller)

// CallGuarded names methods that the server guards, for those whose .proto does not say so.
func CallGuarded(methods ...string) CallerOption {
	return func(c *caller) {
		for _, name := range methods {
			c.guarded.Store(name, true)
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
	c := &caller{}
	for _, opt := range opts {
		opt(c)
	}
	return c.call
}

type caller struct {
	guarded    sync.Map // name of a method -> whether it is guarded
	keyFields  sync.Map // name of a method -> *method
	tryTimeout time.Duration
	budget     retryBudget
}

func (c *caller) call(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	given, opts := takeKey(opts)
	if !c.isGuarded(name) {
		if given != "" {
			ctx = withKey(ctx, given)
		}
		return invoker(ctx, name, req, reply, cc, opts...)
	}
	ctx = c.keyed(ctx, name, req, given)
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
	if err != nil && trying.Err() != nil && ctx.Err() == nil {
		return &tryTimedOut{err}
	}
	return err
}

// tryTimedOut says that not the caller's deadline has passed but that of a try.
type tryTimedOut struct{ error }

func (e *tryTimedOut) Unwrap() error { return e.error }

// takeKey takes the key out of the options of a call.
func takeKey(opts []grpc.CallOption) (id string, rest []grpc.CallOption) {
	rest = opts
	for i := 0; i < len(rest); i++ {
		if o, ok := rest[i].(keyOption); ok {
			id = o.id
			rest = slices.Concat(rest[:i], rest[i+1:])
			i--
		}
	}
	return id, rest
}

func (c *caller) isGuarded(name string) bool {
	if known, ok := c.guarded.Load(name); ok {
		return known.(bool)
	}
	m := &method{name: name, descriptor: describe(name)}
	err := m.declaredInProto()
	guarded := m.guarded && err == nil
	c.guarded.Store(name, guarded)
	return guarded
}

// keyed returns a context for this call alone that carries its key.
func (c *caller) keyed(ctx context.Context, name string, req any, given string) context.Context {
	switch {
	case given != "":
		return withKey(ctx, given)
	case hasOwnKey(ctx), c.requestHasKey(name, req):
		return ctx
	default:
		return withKey(ctx, rand.Text())
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

// hasOwnKey reports whether the outgoing metadata holds a key that is not the incoming one.
func hasOwnKey(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	own := md.Get(MetadataKey)
	return len(own) > 0 && !slices.Equal(own, metadata.ValueFromIncomingContext(ctx, MetadataKey))
}

// requestHasKey reports whether the request itself holds a key.
func (c *caller) requestHasKey(name string, req any) bool {
	m, ok := req.(proto.Message)
	if !ok {
		return false
	}
	cached, ok := c.keyFields.Load(name)
	if !ok {
		declared := &method{name: name, descriptor: describe(name)}
		if declared.descriptor != nil && declared.declaredInProto() == nil {
			declared.keyField, _ = keyField(declared.descriptor.Input(), declared.policy.KeyField)
		}
		cached, _ = c.keyFields.LoadOrStore(name, declared)
	}
	field := cached.(*method).keyField
	return field != nil && m.ProtoReflect().Descriptor() == field.ContainingMessage() && m.ProtoReflect().Get(field).String() != ""
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
