package idemhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
)

// A Guard makes requests act once per Idempotency-Key; see the package for how. A handler finds
// its [client.Attempt] with [client.AttemptFrom], which says when there is none: in a request
// without a key, or that failed open.
//
// What is outside a guarded handler sees every request, what is inside only those that act.
// Recovery, logging, authentication, rate limits, compression and timeouts go outside. To the guard a
// handler has ended when it returns: [http.TimeoutHandler] inside answers 503 while the handler goes
// on, and the next request acts beside it. Inside goes validation, and all that reads the body, such
// as a check of a token with r.FormValue: what is read outside is not there to be compared, so that
// such a request is refused with 500. That shows if all is read, or less than Content-Length; a part
// of a body of unknown length is not seen to be missing. So what decompresses the body outside must set
// ContentLength to the new length, or to -1.
type Guard struct {
	gate    *client.Gate
	options *options
}

// NewGuard makes a guard over s, a [client.Client] or any other store. An error says what is
// wrong with the options.
func NewGuard(s store.Store, opts ...Option) (*Guard, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: %w", err)
	}
	return &Guard{gate: client.NewGate(s, o.notify, o.observe), options: o}, nil
}

// Ready reports whether guarded requests can be carried out now, for a readiness probe; see
// [client.Guard.Ready].
func (g *Guard) Ready(ctx context.Context) error {
	return g.gate.Ready(ctx, g.options.namespace, !g.options.noOwner)
}

// Handler guards a route. Like [http.ServeMux.Handle] with a wrong pattern it panics if the
// policy cannot work, as that is a mistake in the program.
func (g *Guard) Handler(next http.Handler, policy Policy) http.Handler {
	p, err := policy.withDefaults()
	if err != nil {
		panic(fmt.Sprintf("idemhttp: %v", err))
	}
	return &handler{guard: g, policy: p, next: next}
}

// handler is a guarded route.
type handler struct {
	guard  *Guard
	policy Policy
	next   http.Handler
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.policy.Methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	claim, err := h.readRequest(r)
	if errors.Is(err, store.ErrKeyRequired) {
		h.withoutKey(w, r, claim, err)
		return
	}
	if err != nil {
		h.guard.gate.Tell(claim, client.EventRefused, err)
		h.refuse(w, r, err)
		return
	}
	h.pass(w, r, claim)
}

// withoutKey serves a request that has no key.
func (h *handler) withoutKey(w http.ResponseWriter, r *http.Request, claim store.ClaimRequest, err error) {
	if h.policy.Required {
		h.guard.gate.Tell(claim, client.EventNoKey, err)
		h.refuse(w, r, err)
		return
	}
	h.guard.gate.Tell(claim, client.EventNoKey, nil)
	h.next.ServeHTTP(w, apart(r))
}

// refuse answers in the handler's place, unless nothing is enforced.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if h.guard.options.observe {
		h.next.ServeHTTP(w, apart(r))
		return
	}
	writeProblem(w, h.guard.options.docs, err)
}

// pass serves a request that has a key.
func (h *handler) pass(w http.ResponseWriter, r *http.Request, claim store.ClaimRequest) {
	before := w.Header().Clone()
	var held *response // nil if the handler did not run under a grant
	entry := client.Entry{Claim: claim, FailOpen: h.policy.FailOpen, Detach: true}
	end := step.Unknown
	ended := step.Of(r.Context(), claim.Key.ID).Ask("in the process: " + claim.Key.Scope) // if a handler serves its step so
	defer func() { ended(end) }()
	passage, err := h.guard.gate.Pass(r.Context(), entry, func(ctx context.Context) client.Ending {
		r := r.WithContext(ctx)
		attempt, granted := client.AttemptFrom(ctx)
		if !granted || attempt.Key != claim.Key {
			h.serve(w, apart(r))
			return client.Ending{}
		}
		held = &response{to: w, before: before}
		return h.act(held, r, attempt)
	})
	switch {
	case err != nil && (held == nil || !held.passing):
		replace(w.Header(), before)
		writeProblem(w, h.guard.options.docs, err)
	case passage.Replay != nil:
		h.replay(w, passage, claim.Key.ID)
	case held != nil:
		held.release(passage, claim.Key.ID)
	}
	if err == nil {
		end = ofStep(passage, held)
	}
}

// ofStep is what a request that was served in the process of the handler that made it says of that one's step.
func ofStep(p client.Passage, held *response) step.End {
	switch {
	case p.Replay != nil && p.Recorded && !p.Replay.Outcome.BodyOmitted:
		return step.Answered
	case held == nil || !p.Recorded:
		return step.Unknown
	case held.did == step.Completed:
		return step.Answered
	case held.did == step.Released:
		return step.Failed
	default:
		return step.Unknown
	}
}

// act runs the handler under the grant.
func (h *handler) act(held *response, r *http.Request, attempt *client.Attempt) client.Ending {
	said := &sayings{}
	returned := false
	defer func() {
		if !returned && !held.passing {
			held.to.Header().Set(HeaderUnknown, "true") // for what is made of the panic outside
		}
	}()
	h.serve(held, r.WithContext(context.WithValue(r.Context(), sayingsKey{}, said)))
	returned = true
	held.finish()
	inDoubt := attempt.InDoubt()
	end := client.Ending{Effect: store.EffectNone}
	if !said.noEffect.Load() {
		end = h.policy.ending(held, inDoubt, attempt.StepInDoubt())
	}
	switch {
	case end.Outcome != nil:
		held.did = step.Completed
	case end.Effect == store.EffectNone && !inDoubt:
		held.did = step.Released
	}
	return end
}

// apart is a request that the handler gets without a grant of this guard. If it was made in the process,
// by a handler that has one, it is another's intent: neither what is said of it nor its steps are about that handler's.
func apart(r *http.Request) *http.Request {
	ctx := r.Context()
	if _, inside := ctx.Value(sayingsKey{}).(*sayings); !inside {
		if _, inside = client.AttemptFrom(ctx); !inside {
			return r
		}
	}
	return r.WithContext(context.WithValue(client.WithoutAttempt(ctx), sayingsKey{}, &sayings{}))
}

// serve runs the handler with a copy of the request. Files that a form was unpacked into net/http
// removes only if it finds them in the request that it has made itself.
func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll() // nobody is there to be told
		}
	}()
	h.next.ServeHTTP(w, r)
}

// sayings are what a handler has said of its request.
type sayings struct{ noEffect atomic.Bool }

type sayingsKey struct{}

// NoEffect says that the request had no effect, whatever its response says: the key is free
// again, as if nothing had been asked. Say so only if you know; see [client.NoEffect]. It may be
// called at any time until the handler returns, and does nothing in a request that is not guarded.
func NoEffect(r *http.Request) {
	if said, ok := r.Context().Value(sayingsKey{}).(*sayings); ok {
		said.noEffect.Store(true)
	}
}

// NothingFound says of the request's attempt what [client.Attempt.NothingFound] does: a 4xx is stored then as one of a
// first attempt is. It does nothing in a request without an attempt.
func NothingFound(r *http.Request) {
	if a, ok := client.AttemptFrom(r.Context()); ok {
		a.NothingFound()
	}
}

// OnlySteps says of the request's attempt what [client.Attempt.OnlySteps] does. It does nothing in a request without
// an attempt.
func OnlySteps(r *http.Request, names ...string) {
	if a, ok := client.AttemptFrom(r.Context()); ok {
		a.OnlySteps(names...)
	}
}
