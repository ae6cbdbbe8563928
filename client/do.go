package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
)

// Result is what [Do] returns for an intent that was carried out, now or before.
type Result[T any] struct {
	Value T
	// Replayed says that the intent was carried out before: Value is what came of it then,
	// Age ago.
	Replayed bool
	Age      time.Duration
	// Recorded is false if the outcome is not stored. If the store did not answer, that goes
	// on in the background; until it succeeds, or the lease ends, repeats are told to wait.
	Recorded bool
	// RecordedFirst says of a repeat that Value was recorded before anybody acted, with
	// [RecordFirst]: it may not have happened.
	RecordedFirst bool
}

// Do carries out an intent once: it claims key, runs fn if it is granted, and stores what
// came of it for every repeat. s is a [Client] or any other [store.Store], for example an
// embedded one: in a [store.Waiter], [Wait] is over at once when the key is settled, without
// one within a second.
//
// request is what the intent asks for. Its fingerprint finds callers that use one key for
// two requests: a proto.Message, []byte or string; a [store.Fingerprint] is taken as it is;
// nil means that there is none to compare.
//
// T is what fn returns, and what a repeat reads back: any type but an interface or
// a dynamic message, of which nobody could tell what was in it, a func or a channel.
//
// fn runs while the lease lasts, which is renewed for it; when the lease is lost its context
// is cancelled with [ErrLeaseLost]. If [Attempt.Unsettled] is set, an earlier attempt may
// have acted: fn finds out before it acts, or [Recover] does that for it. What fn returns
// means:
//
//   - a value: it is stored, and every repeat gets it. A proto.Message is stored as such,
//     []byte and string as they are, anything else as JSON.
//   - an error with a gRPC status of code InvalidArgument, NotFound, AlreadyExists,
//     FailedPrecondition or OutOfRange: a final answer, stored too, unless [Attempt.Unsettled]
//     is set and nobody found that nothing was done, neither [Recover] nor fn ([Attempt.NothingFound]): an
//     "already paid" may then be about an earlier attempt of this very intent, and is unknown.
//   - an error that [NoEffect] marks: the key is free again, as if nothing had been asked.
//   - any other error, or a panic: nobody knows. The key lapses, and the next attempt is
//     told to check first or, under [Hold], waits for a person.
//
// So an effect that nothing guards, and that fn does not look up, may happen twice and is never
// lost. [RecordFirst] makes the other choice.
//
// The errors of Do are those of fn, those stored, and refusals: [store.ErrKeyInProgress]
// (ask again later), [store.ErrKeyUnresolved], [store.ErrFingerprintMismatch],
// [store.ErrOutcomeOmitted], [store.ErrStaleFence] (another attempt took over while fn ran;
// ask again for its outcome), [store.ErrUnavailable] (fn did not run), and the others of
// [store.Store]. How an attempt ended is recorded even if ctx has ended by then.
func Do[T any](ctx context.Context, s store.Store, key store.Key, request any, fn func(context.Context, *Attempt) (T, error), opts ...DoOption) (Result[T], error) {
	o, found, err := newDoOptions[T](opts)
	if err != nil {
		return Result[T]{}, err
	}
	o.claim.Key = key
	asked := step.Of(ctx, key.ID)
	if o.claim.IntentTime.IsZero() {
		o.claim.IntentTime = asked.Made()
	}
	if o.claim.Fingerprint, err = fingerprintOf(request); err != nil {
		return Result[T]{}, err
	}
	first, err := firstOutcome[T](&o)
	if err != nil {
		return Result[T]{}, err
	}
	end := step.Unknown
	if asked.IsOne() {
		ended := asked.Ask(key.Namespace + "/" + key.Scope + "/" + key.Entity)
		defer func() { ended(end) }()
	}
	x := &execution{store: s, request: o.claim, notify: o.notify, patience: claimTimeout, quiet: &quiet{}}
	acting, replay, err := x.claim(ctx)
	switch {
	case err != nil:
		return Result[T]{}, err
	case replay != nil:
		value, err := decode[T](replay.Outcome)
		if !errors.As(err, new(*store.Error)) { // a stored failure is final
			end = ofFailure(err != nil, !x.unstored)
		}
		return Result[T]{Value: value, Replayed: true, Age: replay.Age, Recorded: true, RecordedFirst: isRecordedFirst(replay.Outcome)}, err
	}
	w := &work[T]{attempt: x.attempt, found: found, keys: o.keys, fn: fn}
	recorded, err := w.carryOut(ctx, acting, x, first)
	if err == nil {
		if end = w.end.ofStep(w.inDoubt); end == step.Answered {
			end = ofFailure(w.err != nil, recorded)
		}
		err = unmarked(w.err)
	}
	if err != nil {
		w.value = *new(T)
	}
	return Result[T]{Value: w.value, Recorded: recorded}, err
}

// ofFailure is what a step's end says: a failure holds for all that come only if it is stored.
func ofFailure(failed, stored bool) step.End {
	if failed && !stored {
		return step.Unknown
	}
	return step.Answered
}

// work is what an attempt does, and what came of it.
type work[T any] struct {
	attempt *Attempt
	found   FoundFunc[T]
	keys    providerKeys
	fn      func(context.Context, *Attempt) (T, error)

	value   T
	err     error
	inDoubt bool   // whether an earlier attempt may have acted, as far as is known
	end     ending // what that means
}

// carryOut acts and records, or the other way round if there is an outcome to record first.
func (w *work[T]) carryOut(ctx, acting context.Context, x *execution, first *store.Outcome) (recorded bool, err error) {
	if first == nil {
		w.end, recorded, err = x.act(acting, w.do)
		return recorded, err
	}
	w.end = ending{outcome: first}
	err = x.recordThenAct(ctx, acting, first, func(ctx context.Context) { w.value, w.err = w.fn(ctx, w.attempt) })
	return err == nil, err
}

func (w *work[T]) do(ctx context.Context) ending {
	w.inDoubt = w.attempt.Unsettled
	if w.inDoubt {
		var done bool
		if done, w.inDoubt, w.err = w.check(ctx); w.err != nil {
			return unknown(w.err) // whatever the error is: it is about asking, not about the intent
		}
		if done {
			return ending{outcome: encode(w.value)}
		}
	}
	w.value, w.err = w.fn(ctx, w.attempt)
	w.inDoubt = w.inDoubt && w.attempt.InDoubt()
	if w.err != nil {
		return w.attempt.failed(w.err, nil, w.inDoubt)
	}
	return ending{outcome: encode(w.value)}
}

// check finds out what an earlier attempt did. It is in doubt if that is not known, and an
// error if nobody may act then.
func (w *work[T]) check(ctx context.Context) (done, inDoubt bool, err error) {
	if w.found != nil {
		if w.value, done, err = w.found(ctx, w.attempt); err == nil {
			return done, false, nil
		}
		err = fmt.Errorf("finding out whether an earlier attempt acted: %w", err)
	}
	return false, true, w.attempt.mayRepeat(ctx, w.keys, err)
}
