package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// A Guard makes the unary methods of a gRPC server run once per key. Make one with
// [NewGuard], pass its [Guard.ServerOptions] to grpc.NewServer, and call [Guard.Verify]
// after the services are registered.
//
// A call's key is its metadata "idempotency-key" or a field of its request. The first call
// with a key runs the handler, and how that ended is stored: see [Do] for what the ends
// mean. A repeat gets the same status, details and response, the metadata that
// [ReplayMetadata] lists, and the header "idempotency-replayed: true"; the handler does not
// run. A handler finds its [Attempt] with [AttemptFrom].
//
// Refusals are statuses with a google.rpc.ErrorInfo of domain "idemd": ABORTED
// KEY_IN_PROGRESS, FAILED_PRECONDITION KEY_UNRESOLVED, FINGERPRINT_MISMATCH or KEY_EXPIRED,
// INVALID_ARGUMENT KEY_REQUIRED, UNAVAILABLE STORE_UNAVAILABLE, and those of [store.Store].
type Guard struct {
	store   store.Store
	options *guardOptions
	wrong   error    // what is wrong with the options
	methods sync.Map // name -> *method
}

// NewGuard makes a guard over s, a [Client] or any other store. What is wrong with the
// options is returned by [Guard.Verify], and until it is mended no guarded call runs.
func NewGuard(s store.Store, opts ...GuardOption) *Guard {
	o := newGuardOptions(opts)
	return &Guard{store: s, options: o, wrong: o.check()}
}

// ServerOptions returns the guard's interceptors for grpc.NewServer. Interceptors given
// before it run outside the guard, on every call; those given after it run inside, only
// if the handler does.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(g.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(g.StreamServerInterceptor()),
	}
}

// StreamServerInterceptor refuses calls of streaming methods that are declared as guarded:
// they cannot be, and must not run as if they were.
func (g *Guard) StreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if m := g.method(info.FullMethod); m.guarded {
			return status.Errorf(codes.Unimplemented, "%s is declared as guarded, and a streaming method cannot be", info.FullMethod)
		}
		return handler(srv, ss)
	}
}

// UnaryServerInterceptor guards unary methods.
func (g *Guard) UnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		m := g.method(info.FullMethod)
		if !m.guarded {
			return handler(ctx, req)
		}
		c := &guarded{guard: g, method: m, request: req, handler: handler}
		if g.options.observe {
			return c.observe(ctx)
		}
		return c.serve(ctx)
	}
}

// method returns how a method is guarded.
func (g *Guard) method(name string) *method {
	if m, ok := g.methods.Load(name); ok {
		return m.(*method)
	}
	m, err := newMethod(name, g.options)
	m.wrong = errors.Join(g.wrong, err)
	stored, _ := g.methods.LoadOrStore(name, m)
	return stored.(*method)
}

// guarded is one call of a guarded method.
type guarded struct {
	guard   *Guard
	method  *method
	request any
	handler grpc.UnaryHandler

	response any
	err      error
}

func (c *guarded) serve(ctx context.Context) (any, error) {
	x, err := c.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if x == nil {
		return c.handler(ctx, c.request)
	}
	acting, replay, err := x.claim(ctx)
	switch {
	case err != nil && x.failOpen && unanswered(err) && ctx.Err() == nil:
		return c.handler(ctx, c.request)
	case err != nil:
		return nil, storepb.ToStatus(err).Err()
	case replay != nil:
		return c.replay(ctx, replay.Outcome)
	default:
		return c.run(ctx, acting, x)
	}
}

// prepare makes an execution of a call. Both results are nil if the call has no key and
// needs none.
func (c *guarded) prepare(ctx context.Context) (*execution, error) {
	if c.method.wrong != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "the guard of this server is not set up: %v", c.method.wrong)
	}
	o, p := c.guard.options, &c.method.policy
	x := &execution{
		store: c.guard.store, notify: o.notify, patience: claimTimeout, failOpen: p.FailOpen, observed: o.observe,
		request: store.ClaimRequest{Lease: p.Lease, Hold: p.Hold, Wait: p.Wait},
	}
	x.request.Key = store.Key{Namespace: o.namespace, Scope: c.method.name}
	id, err := c.keyID(ctx)
	switch {
	case err != nil:
		return nil, storepb.ToStatus(err).Err()
	case id == "":
		return nil, c.withoutKey(x)
	}
	x.request.Key.ID = id
	if x.request.Key.Entity, err = c.entity(ctx); err != nil {
		return nil, err
	}
	if x.request.IntentTime, err = intentTime(ctx); err == nil {
		x.request.Fingerprint, err = c.fingerprint()
	}
	if err != nil {
		return nil, storepb.ToStatus(err).Err()
	}
	return x, nil
}

func (c *guarded) withoutKey(x *execution) error {
	refusal := store.Refuse(store.ErrKeyRequired, `send metadata "idempotency-key" with a key made once for the intent, and the same with every repeat`)
	x.tell(EventNoKey, nil)
	if !c.method.policy.Required {
		return nil
	}
	return storepb.ToStatus(refusal).Err()
}

// run runs the handler under the grant.
func (c *guarded) run(ctx, acting context.Context, x *execution) (any, error) {
	sent := captureMetadata(acting, c.guard.options.replay)
	recorded, err := x.act(sent.context, func(ctx context.Context) ending {
		end := c.handle(ctx, x.attempt)
		if end.outcome != nil {
			sent.addTo(end.outcome)
		}
		return end
	})
	if err != nil {
		return nil, storepb.ToStatus(err).Err()
	}
	if !recorded {
		markNotRecorded(ctx)
	}
	return c.response, c.err
}

// handle runs the recover hook, if there is reason to, and the handler.
func (c *guarded) handle(ctx context.Context, a *Attempt) ending {
	if found := c.method.policy.Recover; found != nil && a.Unsettled {
		response, done, err := found(ctx, c.request, a)
		if err != nil {
			c.err = status.Errorf(codes.Unavailable, "an earlier attempt may have acted, and finding out failed: %v", err)
			return unknown
		}
		if done {
			return c.succeeded(response)
		}
	}
	response, err := c.handler(ctx, c.request)
	if err != nil {
		c.err = unmarked(err)
		return failed(err, c.method.policy.NoEffect)
	}
	return c.succeeded(response)
}

func (c *guarded) succeeded(response any) ending {
	c.response = response
	if _, ok := response.(proto.Message); !ok {
		return unknown // gRPC answers it with an error: the caller learns nothing
	}
	return ending{outcome: encode(response)}
}

// observeTimeout bounds what observing adds to a call while the store does not answer.
const observeTimeout = 250 * time.Millisecond

// observe runs the handler whatever the store says, and reports what it said.
func (c *guarded) observe(ctx context.Context) (any, error) {
	x, err := c.prepare(ctx)
	if err != nil || x == nil {
		return c.handler(ctx, c.request)
	}
	x.patience, x.request.Wait = observeTimeout, 0
	_, replay, err := x.claim(ctx)
	if err != nil || replay != nil {
		return c.handler(ctx, c.request)
	}
	end := unknown
	defer func() { x.settleLater(ctx, end) }()
	response, err := c.handler(ctx, c.request)
	if err != nil {
		end = failed(err, c.method.policy.NoEffect)
	} else {
		end = c.succeeded(response)
	}
	return response, unmarked(err)
}
