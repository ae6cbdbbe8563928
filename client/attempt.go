package client

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/client/internal/step"
	keys "github.com/idemd/idemd/client/key" // variables are named key
	"github.com/idemd/idemd/store"
)

// Attempt is what the code that acts knows about its right to act. It may be used by any
// number of goroutines until the function it was given to returns.
type Attempt struct {
	Key store.Key
	ID  string
	// Fence grows with every grant of the key. Send it along with the effect: whoever
	// receives it remembers the highest one per key and refuses a lower one.
	Fence int64
	// Number counts the attempts of the intent from 1.
	Number int
	// Unsettled says that an earlier attempt may have acted and nobody knows: find out
	// first, by your own reference, then act only if it did not.
	Unsettled bool
	// PreviousFence is the fence of the attempt before; zero if there was none.
	PreviousFence int64
	// Since is when the first attempt was granted that may have acted, by idemd's clock: this one or, if
	// it is Unsettled, an earlier one. No step of the intent was taken before; see [Attempt.StepTime]. It is
	// [store.LongAgo] where that is not known, as of a server that does not say it.
	Since time.Time

	lease    *lease
	begun    time.Time // Since, by this process's clocks
	observed bool
	steps    step.Notes

	clear     atomic.Bool              // NothingFound was said
	onlySteps atomic.Pointer[[]string] // the keys that OnlySteps was said of
}

// NothingFound says that whoever acts, told to check (Unsettled), has looked, by its own reference, or because a guard in
// its database decides it in the same transaction, and knows that no earlier attempt did anything. A failure of this
// attempt is as final then as one of a first attempt. It may be called at any time until the function that acts returns.
func (a *Attempt) NothingFound() { a.clear.Store(true) }

// OnlySteps says that no attempt of the intent does anything but ask for the steps of these names, each guarded where it is
// taken, as a gateway does. If this one is told to check, a failure of it is then final once it has asked for all of them, and
// of each is known what has become of it, also if an earlier attempt asked: it was taken, or the guard there has
// stored how it failed. See [Attempt.StepInDoubt].
func (a *Attempt) OnlySteps(names ...string) {
	ids := make([]string, len(names))
	for i, name := range names {
		ids[i] = a.DownstreamKey(name)
	}
	a.onlySteps.Store(&ids)
}

// InDoubt reports whether an earlier attempt may have acted, as far as is known: Unsettled, unless NothingFound
// or OnlySteps says otherwise.
func (a *Attempt) InDoubt() bool {
	if !a.Unsettled || a.clear.Load() {
		return false
	}
	only := a.onlySteps.Load()
	return only == nil || !a.steps.Settled(*only)
}

// Deadline is until when the right to act is certain, by this process's own clock. While
// the function runs it moves on with each renewal; past it the context is cancelled.
func (a *Attempt) Deadline() time.Time { return a.lease.until() }

// DownstreamKey derives the key for a step of this intent at another system: the same for
// every attempt, another one for another intent or step. It is Downstream of package
// client/key, of the attempt's key: 64 hexadecimal digits. Pass it to the system that is called, in the
// field or header that it has for it; for a gRPC call of a guarded service [StepKey] does that, and
// SetStepKey of package idemhttp for one of HTTP. A [Do] in this attempt with the key as its ID is a step
// too, and has StepTime as its intent time.
func (a *Attempt) DownstreamKey(name string) string {
	return a.steps.Own(keys.Downstream(a.Key, name))
}

// StepTime is the intent time of this intent's steps: Since, or earlier if this machine's clock is behind that
// of idemd, for whoever takes the step may have another idemd. Where it is not known how long ago an earlier attempt
// may have acted it is [store.LongAgo]: a step that is not remembered is refused then. It is zero under
// [Observe], where steps are taken again whatever was recorded.
func (a *Attempt) StepTime() time.Time {
	here := a.begun.Round(0) // by the wall clock
	switch {
	case a.observed:
		return time.Time{}
	case here.Before(a.Since) && !a.Since.Equal(store.LongAgo):
		return here
	default:
		return a.Since
	}
}

// StepInDoubt reports whether of a step that was asked for under a key of [Attempt.DownstreamKey] nobody knows
// whether it was taken, or not yet: it was not answered, or idemd further on did not say what came of it. As long
// as one is, no failure of this attempt is a final answer, whatever it says: a handler may take KEY_EXPIRED, or a
// lost connection, for a "declined". A success is, and so is what [NoEffect] marks.
//
// [UnaryClientInterceptor], Transport of package idemhttp and [Do] note the steps that they are asked for. In doubt
// a step is from when it is asked for until it succeeds, or a guard, or the store of a Do, says that it has stored how it
// failed. An error that nobody vouches for and that would be a final answer of a handler, such as FailedPrecondition or a
// 402, or one with which a guard has released the key, ends only the doubt that asking has begun: what was asked before may
// still act. Any other, such as Unavailable or a 503, may be anybody's.
func (a *Attempt) StepInDoubt() bool { return a.steps.InDoubt() }

// StepAnswered says that what became of a step is known, of whoever was asked for it under that key of
// [Attempt.DownstreamKey] and has been heard or given up: because the code looked it up, for example. What is asked for later may
// be in doubt again. Other keys are ignored.
func (a *Attempt) StepAnswered(key string) { a.steps.Say(key, true) }

// StepUnknown says that a step may have been taken and nobody knows, for those that are asked for otherwise than
// [Attempt.StepInDoubt] says: say it before, and StepAnswered after. Other keys are ignored.
func (a *Attempt) StepUnknown(key string) { a.steps.Say(key, false) }

// StepKey gives one gRPC call that guarded code makes, in a handler or in the function of [Do],
// the key for that step of its intent: [Attempt.DownstreamKey], whichever attempt makes the
// call. It is [Key] with that, and as Key needs [UnaryClientInterceptor]; a call without the
// interceptor carries no key, so there put the DownstreamKey into the outgoing metadata
// [MetadataKey]. If ctx is in no attempt (see [AttemptFrom]) the call gets no key from it, and
// the interceptor draws one.
//
// The call carries [Attempt.StepTime] too, as [MetadataIntentTime], unless its metadata has one of its own:
// an intent may be unsettled for longer than the service further on keeps the step's outcome, and
// then that refuses the step ([store.ErrKeyExpired]) and does not take it again. So that this does not
// happen, let services further on keep outcomes for as long as this one may be repeated, and for longer
// than its longest attempt takes.
//
// A step that is taken several times, such as one refund for each of three parcels, is several
// steps: their names must differ.
func StepKey(ctx context.Context, name string) grpc.CallOption {
	a, ok := AttemptFrom(ctx)
	if !ok {
		return grpc.EmptyCallOption{}
	}
	return keyOption{id: a.DownstreamKey(name), of: a}
}

type attemptKey struct{}

// AttemptFrom returns the attempt in which the function with this context runs. It is
// false, and the attempt nil, in code that idemd does not guard: in a handler whose call
// carries no key, or whose guard fails open. Under [Observe] there is one if the key was
// granted, and none for what would have been refused or answered with what is stored. So
// look at ok before using the attempt.
func AttemptFrom(ctx context.Context) (*Attempt, bool) {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a, a != nil
}

// WithoutAttempt returns a context that is in no attempt, for code that carries out another intent than the
// handler does that calls it: an item of a batch, for example, whose steps are not the batch's.
func WithoutAttempt(ctx context.Context) context.Context {
	return step.With(context.WithValue(ctx, attemptKey{}, nil), nil)
}

// withAttempt returns a context in which the function that acts finds its attempt.
func withAttempt(ctx context.Context, a *Attempt) context.Context {
	return step.With(context.WithValue(ctx, attemptKey{}, a), &a.steps)
}

// newAttemptID draws the name of one execution: 128 random bits.
func newAttemptID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return string(id[:])
}
