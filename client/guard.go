package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client/internal/step"
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
// run. A handler finds its [Attempt] with [AttemptFrom], which says when there is none.
//
// Refusals are statuses with a google.rpc.ErrorInfo of domain "idemd": ABORTED
// KEY_IN_PROGRESS, FAILED_PRECONDITION KEY_UNRESOLVED, FINGERPRINT_MISMATCH or KEY_EXPIRED,
// INVALID_ARGUMENT KEY_REQUIRED, UNAVAILABLE STORE_UNAVAILABLE, and those of [store.Store].
type Guard struct {
	gate    *Gate
	options *guardOptions
	wrong   error    // what is wrong with the options
	methods sync.Map // name -> *method
}

// NewGuard makes a guard over s, a [Client] or any other store, for example an embedded one:
// in a [store.Waiter] a call that waits is woken at once when the key is settled, without
// one within a second. What is wrong with the options is returned by [Guard.Verify], and
// until it is mended no guarded call runs.
func NewGuard(s store.Store, opts ...GuardOption) *Guard {
	o := newGuardOptions(opts)
	return &Guard{gate: NewGate(s, o.notify, o.observe), options: o, wrong: o.check()}
}

// ServerOptions returns the guard's interceptors for grpc.NewServer. Interceptors given
// before it run outside the guard, on every call; those given after it run inside, only
// if the handler does. None of these may return while the handler still runs, as one that bounds
// its time may: the guard takes it for ended.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(g.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(g.StreamServerInterceptor()),
	}
}

// Ready reports whether guarded calls can be carried out now, for a readiness probe: the guard is set
// up, idemd answers and takes this server's credentials, and the namespace exists. Among regions it
// asks the home of one key. It costs a lookup, and errors are those of [store.Store]. Where methods
// fail open or are only observed, idemd's absence is no reason to take no calls.
func (g *Guard) Ready(ctx context.Context) error {
	if g.wrong != nil {
		return g.wrong
	}
	return g.gate.Ready(ctx, g.options.namespace, !g.options.noOwner)
}

// StreamServerInterceptor refuses calls of streaming methods that are declared as guarded:
// they cannot be, and must not run as if they were.
func (g *Guard) StreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if m := g.method(info.FullMethod); m.guarded && !g.options.observe {
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
	if m.descriptor == nil && !m.declared {
		return m // not kept: with grpc.UnknownServiceHandler callers make up the names
	}
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
	inDoubt  bool // whether an earlier attempt may have acted, as far as is known
}

func (c *guarded) serve(ctx context.Context) (any, error) {
	x, err := c.prepare(ctx)
	if err == nil && x == nil {
		return c.handler(ctx, c.request)
	}
	if err != nil {
		mark(ctx, MetadataGuarded, MetadataUnknown)
		return nil, err
	}
	acting, replay, err := x.claim(ctx)
	if x.failsOpen(ctx, err) {
		return c.handler(ctx, c.request)
	}
	mark(ctx, MetadataGuarded)
	switch {
	case err != nil:
		mark(ctx, MetadataUnknown)
		return nil, storepb.ToStatus(refusalOf(x.request, err)).Err()
	case replay != nil:
		return c.replay(ctx, replay.Outcome, x)
	default:
		return c.run(ctx, acting, x)
	}
}

// prepare makes an execution of a call. Both results are nil if the call has no key and
// needs none.
func (c *guarded) prepare(ctx context.Context) (*execution, error) {
	o, p := c.guard.options, &c.method.policy
	x := c.guard.gate.execution(Entry{
		Claim: store.ClaimRequest{Lease: p.Lease, Hold: p.Hold, Wait: p.Wait}, FailOpen: p.FailOpen, Detach: p.Detach,
	})
	x.request.Key = store.Key{Namespace: o.namespace, Scope: c.method.name}
	err := c.readRequest(ctx, &x.request)
	switch {
	case errors.Is(err, errNoKey):
		if !p.Required {
			x.tell(EventNoKey, nil)
			return nil, nil
		}
		x.tell(EventNoKey, err)
	case err != nil:
		x.tell(EventRefused, err)
	default:
		return x, nil
	}
	if _, ok := status.FromError(err); ok {
		return nil, err
	}
	return nil, storepb.ToStatus(err).Err()
}

// readRequest makes the claim out of what the call brings along.
func (c *guarded) readRequest(ctx context.Context, claim *store.ClaimRequest) (err error) {
	if c.method.wrong != nil {
		return store.Refuse(store.ErrInternal, fmt.Sprintf("the guard of this server is not set up: %v", c.method.wrong))
	}
	if claim.Key.ID, err = c.keyID(ctx); err != nil {
		return err
	}
	if claim.Key.ID == "" {
		return errNoKey
	}
	if claim.Key.Entity, err = c.entity(ctx); err != nil {
		return err
	}
	if a, ok := AttemptFrom(ctx); ok && a.Key == claim.Key {
		return errInstalledTwice
	}
	if claim.IntentTime, err = intentTime(ctx); err != nil {
		return err
	}
	claim.Fingerprint, err = c.fingerprint()
	return err
}

var errNoKey = store.Refuse(store.ErrKeyRequired, `send metadata "idempotency-key" with a key made once for the intent, and the same with every repeat`)

// errInstalledTwice is that of the guard inside. It says that nothing happened, for then the
// guard outside, which holds the key, lets go of it and stores nothing.
var errInstalledTwice = NoEffect(storepb.ToStatus(store.Refuse(store.ErrInternal,
	"the guard of this server is installed twice, and holds the key already; pass it to grpc.NewServer once, or give the two guards a namespace each")).Err())

// isSetUp reports whether a refusal is about this server and its store, not about the call.
func isSetUp(claim store.ClaimRequest, err error) bool {
	if isAny(err, store.ErrUnavailable, store.ErrHomeUnreachable, store.ErrWrongRegion, store.ErrNamespaceUnknown,
		store.ErrUnauthenticated, store.ErrPermissionDenied) {
		return true
	}
	// What is wrong with a valid claim is what the namespace demands of lease and entity, or
	// the intent time, which is the caller's.
	return errors.Is(err, store.ErrInvalidArgument) && claim.Validate() == nil && claim.IntentTime.IsZero()
}

// run runs the handler under the grant.
func (c *guarded) run(ctx, acting context.Context, x *execution) (any, error) {
	sent := captureMetadata(ctx, acting, c.guard.options.replay, x.detached)
	end := unknown(errNotReturned)
	defer func() { c.markUnknown(ctx, end) }()
	done, recorded, err := x.act(sent.context, func(ctx context.Context) ending {
		end := c.handle(ctx, x.attempt)
		sent.addTo(end.outcome)
		return end
	})
	if err != nil {
		return nil, storepb.ToStatus(err).Err()
	}
	end = done
	if !recorded {
		mark(ctx, MetadataNotRecorded)
	}
	if c.err != nil && recorded {
		c.markEnd(ctx, end, x.request.Key.ID)
	}
	return c.response, c.err
}

// markUnknown says that an error of the call is no final answer, also if it is made of a panic outside the guard. If
// another guard is outside, it is none of that one's either.
func (c *guarded) markUnknown(ctx context.Context, end ending) {
	if !end.inDoubt(c.inDoubt) {
		return
	}
	mark(ctx, MetadataUnknown)
	if outer, ok := AttemptFrom(ctx); ok {
		outer.steps.Doubt()
	}
}

// markEnd says what was done with the key of a call that is answered with an error.
func (c *guarded) markEnd(ctx context.Context, end ending, id string) {
	did := step.Completed
	switch end.ofStep(c.inDoubt) {
	case step.Unknown:
		return
	case step.Failed:
		did = step.Released
	case step.Answered:
	}
	setTrailer(ctx, MetadataEnd, step.Mark(did, int(statusOf(c.err).Code()), id))
}

// handle runs the recover hook, if there is reason to, and the handler.
func (c *guarded) handle(ctx context.Context, a *Attempt) ending {
	c.inDoubt = a.Unsettled
	if c.inDoubt {
		hook := &c.method.policy.Recover
		response, done, unknownStill, err := hook.ask(ctx, c.request, a)
		if err != nil {
			c.err = hook.refusal(err)
			return unknown(err)
		}
		if done {
			return c.succeeded(response)
		}
		c.inDoubt = unknownStill
	}
	_, end := c.call(ctx)
	return end
}

// call runs the handler. It returns what it returned, and what its end means.
func (c *guarded) call(ctx context.Context) (any, ending) {
	response, err := c.handler(ctx, c.request)
	a, granted := AttemptFrom(ctx)
	if granted {
		c.inDoubt = c.inDoubt && a.InDoubt()
	}
	if err != nil {
		c.err = unmarked(err)
		return response, a.failed(err, c.method.policy.NoEffect, c.inDoubt)
	}
	return response, c.succeeded(response)
}

var errNotFoundOut = status.Error(codes.Unavailable, "an earlier attempt may have acted, and whether it did could not be found out; send the same request again later")

func (c *guarded) succeeded(response any) ending {
	c.response = response
	switch response.(type) {
	case proto.Message:
		return ending{outcome: encode(response)}
	case nil: // gRPC sends an empty message
		return ending{outcome: &store.Outcome{BodyType: string(c.method.descriptor.Output().FullName())}}
	default:
		// gRPC answers it with an error: the caller learns nothing.
		return unknown(fmt.Errorf("the handler returned a %T, which is no protobuf message", response))
	}
}

// observe runs the handler whatever the store says.
func (c *guarded) observe(ctx context.Context) (any, error) {
	x, err := c.prepare(ctx)
	if err != nil || x == nil {
		return c.handler(ctx, c.request)
	}
	var response any
	x.observe(ctx, func(acting context.Context) (end ending) {
		sent := captureMetadata(ctx, acting, c.guard.options.replay, false)
		c.inDoubt = x.attempt != nil && x.attempt.Unsettled
		response, end = c.call(sent.context)
		sent.addTo(end.outcome)
		c.markUnknown(ctx, end)
		return end
	})
	return response, c.err
}
