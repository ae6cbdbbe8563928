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

	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// A CallerOption sets how [UnaryClientInterceptor] works.
type CallerOption func(*caller)

// CallGuarded names methods that the server guards, for those whose .proto does not say so.
// A server that guards them by other means than a [Guard] sets the trailer [MetadataGuarded].
// If such a request holds its key in a field other than request_id, give the call that [Key].
func CallGuarded(methods ...string) CallerOption {
	return func(c *caller) {
		for _, name := range methods {
			c.named[name] = true
		}
	}
}

// TryTimeout bounds each try of a call, so that one whose reply is lost is sent again before
// the caller's deadline. The default is to leave it to the deadline. It must exceed the time
// that the handler takes at its slowest: each try that times out cancels the handler (unless
// its policy detaches it), which then cannot tell whether it acted.
func TryTimeout(d time.Duration) CallerOption { return func(c *caller) { c.tryTimeout = d } }

// Key gives one call its key: made once for the intent, and the same on every repeat of it,
// also by another process (package client/key makes such keys, and [StepKey] is for calls that a
// guarded handler makes). Pass it to the call itself; a key that lay in a context would go
// on to the next call.
func Key(id string) grpc.CallOption { return keyOption{id: id} }

type keyOption struct {
	grpc.EmptyCallOption
	id string
	of *Attempt // whose step it is, whatever the call's context; nil if that is not known
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
//
// A call is sent again only if the server enforces its guard; one that only observes, or
// failed open, would act again. Its responses say so in the trailer [MetadataGuarded]. Where
// there is no response, because the connection broke or [TryTimeout] passed, the last one of
// the method from the same target counts; before the first one, such a call is not sent
// again. So have every replica enforce its guard before callers get the interceptor, and take
// it away from them before going back to [Observe]. What a proxy answers in the server's
// place, or an interceptor outside the guard, is not sent again either.
//
// A call under a key of [Attempt.DownstreamKey], wherever it carries that, is a step of the attempt that its context
// is in; see [StepKey] and [Attempt.StepInDoubt].
//
// If idemd refuses a call, [Refusal] of its error says why, such as [store.ErrKeyExpired]. Look at that before
// the code, which may be that of an answer of the method's.
func UnaryClientInterceptor(opts ...CallerOption) grpc.UnaryClientInterceptor {
	return newCaller(opts...).call
}

type caller struct {
	named      map[string]bool // methods of CallGuarded
	methods    sync.Map        // name -> *method
	enforced   sync.Map        // served -> bool: whether the last response was marked as guarded
	tryTimeout time.Duration
	retries    Retries
}

func newCaller(opts ...CallerOption) *caller {
	c := &caller{named: map[string]bool{}}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

func (c *caller) call(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m := c.method(name)
	given, opts := takeKey(opts)
	if given != nil {
		ctx = withKey(ctx, outgoing(ctx), given.id)
	} else if m.guarded {
		ctx = keyed(ctx, m, req)
	}
	t := &calling{caller: c, name: name, req: req, reply: reply, cc: cc, invoker: invoker, opts: opts}
	t.step = stepOf(ctx, m, req, given)
	if t.step.IsOne() {
		ctx = metadata.NewOutgoingContext(ctx, withIntentTime(ctx, outgoing(ctx), t.step.Made()))
	}
	if !m.guarded {
		_, _, err := t.send(ctx)
		return err
	}
	return c.retries.Do(ctx, func() (again bool, err error) { return t.try(ctx) })
}

// calling is one call.
type calling struct {
	caller     *caller
	name       string
	req, reply any
	cc         *grpc.ClientConn
	invoker    grpc.UnaryInvoker
	opts       []grpc.CallOption
	step       step.Step
}

// target is where the call goes; empty in a test without a connection.
func (t *calling) target() string {
	if t.cc == nil {
		return ""
	}
	return t.cc.Target()
}

// stepOf returns the step that a call is of an attempt, if it is one.
func stepOf(ctx context.Context, m *method, req any, given *keyOption) step.Step {
	if given != nil && given.of != nil {
		return given.of.steps.Of(ctx, given.id)
	}
	if _, ok := AttemptFrom(ctx); !ok {
		return step.Step{} // mostly; the rest need not be looked at
	}
	if ids := slices.Compact(outgoing(ctx).Get(MetadataKey)); len(ids) > 0 {
		return step.Of(ctx, ids[0]) // if there are several that differ it is refused
	}
	return step.Of(ctx, m.keyIn(req))
}

// stepEnd is what a response says of a step.
func stepEnd(err error, trailer metadata.MD, key string) step.End {
	if err == nil {
		return step.Answered
	}
	st := statusOf(err)
	says := func(name string) bool { return slices.Contains(trailer.Get(name), "true") }
	if madeByIdemd(st) || says(MetadataUnknown) || says(MetadataNotRecorded) {
		return step.Unknown
	}
	for _, mark := range trailer.Get(MetadataEnd) {
		if end, ok := step.EndOf(mark, int(st.Code()), key); ok {
			return end
		}
	}
	if slices.Contains(storedCodes, st.Code()) {
		return step.Failed // nobody vouches for it, but mostly it is the method's answer
	}
	return step.Unknown
}

// Refusal is what idemd further on has refused a call with, as an error of package store, such as
// [store.ErrKeyExpired]; nil if err is none of idemd's, but an answer of the method.
func Refusal(err error) error {
	if err == nil || !madeByIdemd(statusOf(err)) {
		return nil
	}
	return storepb.FromStatus(err)
}

// try sends the call of a guarded method once.
func (t *calling) try(ctx context.Context) (again bool, err error) {
	c := t.caller
	if c.tryTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.tryTimeout)
		defer cancel()
	}
	header, trailer, err := t.send(ctx)
	of := served{target: t.target(), method: t.name}
	answered := err == nil || len(header) > 0 || len(trailer) > 0
	enforced := c.isEnforced(of, answered, trailer)
	return err != nil && enforced && c.worthCallingAgain(err), err
}

// send sends the call once, and notes what that says of the step that it is.
func (t *calling) send(ctx context.Context) (header, trailer metadata.MD, err error) {
	end := step.Unknown
	if t.step.IsOne() {
		ended := t.step.Ask(t.target() + t.name)
		defer func() { ended(end) }()
	}
	err = t.invoker(ctx, t.name, t.req, t.reply, t.cc, append(slices.Clip(t.opts), grpc.Header(&header), grpc.Trailer(&trailer))...)
	end = stepEnd(err, trailer, t.step.Key())
	return header, trailer, err
}

// served is a method where it is served.
type served struct{ target, method string }

// isEnforced reports whether a call was guarded, so that sending it again does not act again:
// its response says so, or if that was lost, the last one that was not did.
func (c *caller) isEnforced(of served, answered bool, trailer metadata.MD) bool {
	last, known := c.enforced.Load(of)
	if !answered {
		return last == true
	}
	marked := slices.Contains(trailer.Get(MetadataGuarded), "true")
	if !known || last != marked {
		c.enforced.Store(of, marked)
	}
	return marked
}

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
	if m.descriptor != nil || m.guarded { // others may be made up, without end, where calls are passed on
		c.methods.Store(name, m)
	}
	return m
}

// outgoing is a copy of the metadata that a call of this context carries.
func outgoing(ctx context.Context) metadata.MD {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		return md
	}
	return metadata.MD{}
}

// keyed returns a context for this call alone that carries its key, unless the request does.
func keyed(ctx context.Context, m *method, req any) context.Context {
	md := outgoing(ctx)
	own := md.Get(MetadataKey)
	copied := len(own) > 0 && isCopied(ctx, md, MetadataKey)
	switch {
	case len(own) > 0 && !copied:
		return ctx
	case m.keyIn(req) == "":
		return withKey(ctx, md, rand.Text())
	case copied:
		md.Delete(MetadataKey)
		return metadata.NewOutgoingContext(ctx, withoutCopiedTime(ctx, md))
	default:
		return ctx
	}
}

// isCopied reports whether metadata of a call was merely copied from the incoming call, and so is that of another
// intent.
func isCopied(ctx context.Context, md metadata.MD, name string) bool {
	return slices.Equal(md.Get(name), metadata.ValueFromIncomingContext(ctx, name))
}

// withIntentTime adds a step's intent time to md, the caller's own metadata of a call, unless that has one.
func withIntentTime(ctx context.Context, md metadata.MD, made time.Time) metadata.MD {
	if made.IsZero() || len(md.Get(MetadataIntentTime)) > 0 && !isCopied(ctx, md, MetadataIntentTime) {
		return md
	}
	md.Set(MetadataIntentTime, made.UTC().Format(time.RFC3339Nano))
	return md
}

// withoutCopiedTime takes the incoming call's intent time out of md, unless its key is in it too.
func withoutCopiedTime(ctx context.Context, md metadata.MD) metadata.MD {
	if isCopied(ctx, md, MetadataIntentTime) && !isCopied(ctx, md, MetadataKey) {
		md.Delete(MetadataIntentTime)
	}
	return md
}

// withKey returns a context whose outgoing metadata is md, the caller's own, with the key.
func withKey(ctx context.Context, md metadata.MD, id string) context.Context {
	md.Set(MetadataKey, id)
	return metadata.NewOutgoingContext(ctx, withoutCopiedTime(ctx, md))
}

// worthCallingAgain reports whether the same call, under the same key, may succeed if it is
// sent again.
func (c *caller) worthCallingAgain(err error) bool {
	st := statusOf(err)
	if madeByIdemd(st) {
		refusal := storepb.FromStatus(err)
		return worthRetrying(refusal) || errors.Is(refusal, store.ErrKeyInProgress) || errors.Is(refusal, store.ErrStaleFence)
	}
	// The server may see the deadline of a try pass, and say so, before this process does.
	tryTimedOut := c.tryTimeout > 0 && st.Code() == codes.DeadlineExceeded
	return tryTimedOut || st.Code() == codes.Unavailable
}
