package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/idemd/idemd/store"
)

// RecordFirst has [Do] record value, as what came of the intent, before its function acts: if
// the process dies in between, or the function fails, the effect is lost, and it never
// happens twice. Every repeat gets value, with [Result.RecordedFirst] set, at once and for
// as long as retention lasts, also while fn still runs; the first caller gets what fn
// returns. T must be Do's.
//
// It is for an effect that nothing guards and nobody can look up (a mail, a message to a
// phone), where a second one is worse than none. Without it Do acts, then records: a process
// that dies in between has the next attempt act again, told that it may be the second
// time. [Hold] is the third choice: then a person decides.
//
// When fn runs the key is settled, so there is no lease any more: nothing renews, and fn's
// context ends with the caller's alone. If recording fails, fn does not run: the error is
// [store.ErrUnavailable], and in rare cases, where what was not answered is recorded all the
// same, the effect is lost then too. An error of fn, also one marked [NoEffect], takes
// nothing back.
//
// All callers of a key must record first: an attempt that finds [Attempt.Unsettled] set
// acts, since others that were not recorded have not acted. So it does not go with [Recover]
// and [ProviderKeys], which Do refuses with [store.ErrInvalidArgument].
func RecordFirst[T any](value T) DoOption {
	return doOption(func(o *doOptions) { o.first = firstValue[T]{value} })
}

type firstValue[T any] struct{ value T }

// trailerRecordedFirst marks an outcome that was recorded before anybody acted.
const trailerRecordedFirst = "idempotency-recorded-first"

// firstOutcome is what RecordFirst has recorded; nil if it was not given.
func firstOutcome[T any](o *doOptions) (*store.Outcome, error) {
	first, ok := o.first.(firstValue[T])
	switch {
	case o.first == nil:
		return nil, nil
	case !ok:
		return nil, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("RecordFirst was given a value of another type (%T) than Do's, %T", o.first, first))
	case o.found != nil || o.keys.given:
		return nil, store.Refuse(store.ErrInvalidArgument, "RecordFirst does not go with Recover or ProviderKeys: what was not recorded was not done; take one of them away")
	}
	outcome := encode(first.value)
	if outcome.BodyOmitted {
		return nil, store.Refuse(store.ErrInvalidArgument, "the value of RecordFirst cannot be encoded, and so not be recorded")
	}
	outcome.Trailer = []store.MetadataEntry{{Name: trailerRecordedFirst, Value: []byte("true")}}
	return outcome, nil
}

func isRecordedFirst(o *store.Outcome) bool {
	return slices.ContainsFunc(o.Trailer, func(e store.MetadataEntry) bool { return e.Name == trailerRecordedFirst })
}

// recordThenAct has the outcome recorded, and only then fn act, in the caller's context.
func (x *execution) recordThenAct(ctx, acting context.Context, first *store.Outcome, fn func(context.Context)) error {
	if err := x.complete(acting, first); err != nil {
		_, _ = x.settle(acting, ending{effect: store.EffectNone}) // nobody has acted
		if unanswered(err) {
			return &store.Error{Sentinel: store.ErrUnavailable, Detail: "it could not be recorded first, so it was not done", RetryAfter: retryAfter(err), Cause: err}
		}
		return err
	}
	x.lease.stop()
	x.tell(EventRecorded, nil)
	ctx, cancel := beyondLease(ctx)
	defer cancel()
	fn(withAttempt(ctx, x.attempt))
	return nil
}

// beyondLease returns a context that ends as ctx does, but not with the lease of an attempt that ctx is in: what
// was recorded has nothing to do with that lease any more, and nobody else would act.
func beyondLease(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	caller := outside(ctx)
	left := context.AfterFunc(caller, func() { cancel(context.Cause(caller)) })
	ended := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) {
			cancel(cause)
		}
	})
	end := func() { left(); ended(); cancel(nil) }
	if deadline, ok := ctx.Deadline(); ok {
		bounded, expire := context.WithDeadline(own, deadline)
		return bounded, func() { expire(); end() }
	}
	return own, end
}

// complete records an outcome as it is, or not at all.
func (x *execution) complete(ctx context.Context, o *store.Outcome) error {
	ctx, cancel := context.WithTimeout(withoutMetadata(context.WithoutCancel(ctx)), recordTimeout)
	defer cancel()
	a := x.attempt
	_, err := x.store.Complete(ctx, store.CompleteRequest{Key: a.Key, AttemptID: a.ID, Fence: a.Fence, Outcome: o})
	return err
}
