package client

import (
	"context"
	"errors"

	"github.com/idemd/idemd/store"
)

// A Gate is what guards of all protocols are made of: it claims the key of a call, lets the
// call act if that is granted, keeps the lease, and records how it ended. [Guard] is the guard
// of gRPC and package idemhttp that of HTTP: use those. A Gate is for whoever writes a guard
// for another protocol, which says what a call's key, fingerprint and outcome are. It can be
// used by any number of goroutines.
type Gate struct {
	store   store.Store
	notify  func(Event)
	observe bool
	quiet   quiet // of the store
}

// NewGate makes a gate over a store. notify is told what becomes of calls, as [OnEvent] says; it
// may be nil. With observe nothing is enforced, as [Observe] says.
func NewGate(s store.Store, notify func(Event), observe bool) *Gate {
	return &Gate{store: s, notify: notify, observe: observe}
}

// An Entry is a call that comes to a gate.
type Entry struct {
	// Claim is what is asked of the store. The gate draws the attempt id.
	Claim store.ClaimRequest
	// FailOpen and Detach are as in [Policy].
	FailOpen, Detach bool
}

// An Ending is how a call that acted ended. The zero Ending is that nobody knows what happened.
type Ending struct {
	// Outcome answers every repeat. If it is too large for the store, metadata is left out,
	// but for entries whose names begin with a colon; and if that is not enough, the body.
	Outcome *store.Outcome
	// Effect is what is known if there is no outcome; zero is [store.EffectUnknown].
	Effect store.Effect
	// Why is told with the event of the ending; it may be nil.
	Why error
}

func (e Ending) ending() ending {
	end := ending{outcome: e.Outcome, effect: e.Effect, why: e.Why}
	if end.effect == 0 {
		end.effect = store.EffectUnknown
	}
	return end
}

// A Passage is what became of a call.
type Passage struct {
	// Replay is the stored outcome, if the call is a repeat and did not act.
	Replay *store.Completed
	// Guarded says that it acted under a lease. It is false for a repeat and for what acted
	// without a guard: because it failed open, or because the gate observes.
	Guarded bool
	// Recorded says that how a guarded call ended, or what a repeat is told, is stored. If it is not, that goes on in
	// the background.
	Recorded bool
	// Completed says that what is recorded of a guarded call is its outcome. It is not if there is none; nor if it is a
	// failure of a call of which a step is in doubt.
	Completed bool
}

// Pass has act called, at most once, if the call may act: with a context that has its [Attempt],
// if it is guarded, and ends with its lease. If act panics, what happened is unknown, and the
// panic goes on.
//
// An error is a refusal of [store.Store], [store.ErrKeyInProgress], [store.ErrKeyUnresolved] or
// the error of ctx, and act was not called; or [store.ErrStaleFence], [store.ErrStaleAttempt] or
// [store.ErrAlreadyCompleted]: it was, but another attempt or an operator came in between, and
// theirs is the outcome. What concerns only this server and its store is told as
// [store.ErrUnavailable], and by the event as what it is.
func (g *Gate) Pass(ctx context.Context, e Entry, act func(ctx context.Context) Ending) (Passage, error) {
	x := g.execution(e)
	acts := func(ctx context.Context) ending { return act(ctx).ending() }
	if g.observe {
		x.observe(ctx, acts)
		return Passage{}, nil
	}
	acting, replay, err := x.claim(ctx)
	switch {
	case x.failsOpen(ctx, err):
		act(ctx)
		return Passage{}, nil
	case err != nil:
		return Passage{}, refusalOf(x.request, err)
	case replay != nil:
		return Passage{Replay: replay, Recorded: !x.unstored}, nil
	}
	end, recorded, err := x.act(acting, acts)
	return Passage{Guarded: true, Recorded: recorded, Completed: end.outcome != nil}, err
}

// Tell reports an event of a call that came to no gate: [EventNoKey] or [EventRefused].
func (g *Gate) Tell(claim store.ClaimRequest, kind EventKind, err error) {
	g.execution(Entry{Claim: claim}).tell(kind, err)
}

// Ready is as [Guard.Ready]. owned says whether keys have an entity.
func (g *Gate) Ready(ctx context.Context, namespace string, owned bool) error {
	key := store.Key{Namespace: namespace, Scope: "idemd-ready", ID: "idemd-ready"}
	if owned {
		key.Entity = "idemd-ready"
	}
	_, err := g.store.Lookup(withoutMetadata(ctx), store.LookupRequest{Key: key})
	if errors.Is(err, store.ErrKeyNotFound) {
		return nil
	}
	return err
}

func (g *Gate) execution(e Entry) *execution {
	return &execution{
		store: g.store, request: e.Claim, notify: g.notify, patience: claimTimeout,
		failOpen: e.FailOpen, quiet: &g.quiet, observed: g.observe, detached: e.Detach,
	}
}

// refusalOf is what the caller is told of a claim that was not granted. How the store is reached
// and set up does not concern this server's callers: the event tells whom it does.
func refusalOf(claim store.ClaimRequest, err error) error {
	told := &store.Error{Sentinel: store.ErrUnavailable, Detail: "this call did nothing; whether an earlier one with this key did is not known; send the same request again", RetryAfter: retryAfter(err)}
	switch {
	case errors.Is(err, store.ErrInternal):
		told.Sentinel = store.ErrInternal
		return told
	case isSetUp(claim, err):
		return told
	default:
		return err
	}
}
