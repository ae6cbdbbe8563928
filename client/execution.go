package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// claimTimeout bounds a claim, on top of its wait, for callers that set no deadline.
const claimTimeout = 5 * time.Second

// An execution is one attempt at an intent: it claims the key, acts if it is granted, and
// records how that ended. [Do] and [Guard] are made of it.
type execution struct {
	store   store.Store
	request store.ClaimRequest // without an attempt id
	notify  func(Event)
	// patience bounds the claim, on top of its wait.
	patience time.Duration
	failOpen bool // whether the caller acts without a guard if the store does not answer
	observed bool // whether nothing is enforced

	attempt *Attempt
	lease   *lease
}

// claim asks for the right to act. Either it was granted, and the caller runs act, or the
// stored outcome or the refusal is returned.
func (x *execution) claim(ctx context.Context) (acting context.Context, replay *store.Completed, err error) {
	x.request.AttemptID = newAttemptID()
	limit := x.patience + x.request.Wait
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sent := time.Now()
	answer, err := x.store.Claim(asking, x.request)
	if err != nil && ctx.Err() == nil && isContextError(err) {
		err = &store.Error{Sentinel: store.ErrUnavailable, Detail: fmt.Sprintf("no answer to the claim within %v", limit), Cause: err}
	}
	x.notifyClaim(answer, err)
	switch {
	case err != nil:
		return nil, nil, err
	case answer.Completed != nil:
		return nil, answer.Completed, nil
	case answer.Granted != nil:
		return x.granted(ctx, answer.Granted, sent), nil, nil
	default:
		return nil, nil, notGranted(answer)
	}
}

func (x *execution) granted(ctx context.Context, g *store.Granted, sent time.Time) context.Context {
	acting, held := holdLease(ctx, x.store, x.request, g, sent)
	x.lease = held
	x.attempt = &Attempt{
		Key: x.request.Key, ID: x.request.AttemptID, Fence: g.Fence, Number: g.AttemptNumber,
		Unsettled: g.Unsettled, PreviousFence: g.PreviousFence, lease: held,
	}
	return context.WithValue(acting, attemptKey{}, x.attempt)
}

// notGranted is the refusal for an expected answer that leaves a caller with nothing.
func notGranted(answer store.ClaimAnswer) error {
	switch {
	case answer.InProgress != nil:
		return &store.Error{
			Sentinel: store.ErrKeyInProgress, Detail: "another attempt holds the key; send the same request again later",
			RetryAfter: answer.InProgress.RetryAfter,
		}
	case answer.Unresolved != nil:
		return store.Refuse(store.ErrKeyUnresolved, "an attempt lapsed and the key is held; nobody acts before its holder or an operator settles it")
	default:
		return store.Refuse(store.ErrInternal, "the claim got an answer that this client does not know")
	}
}

// act runs fn, which says how it ended, under the lease, and records that. If fn panics,
// or ends its goroutine, the key is given up as unknown and the panic goes on.
func (x *execution) act(acting context.Context, fn func(context.Context) ending) (recorded bool, err error) {
	returned := false
	defer func() {
		if !returned {
			x.settle(acting, unknown)
		}
	}()
	end := fn(acting)
	returned = true
	return x.settle(acting, end)
}

// settle records how the attempt ended. An error is the store's final word that another
// attempt or an operator came in between; what was done does not count then.
func (x *execution) settle(acting context.Context, end ending) (recorded bool, err error) {
	x.noticeLoss(acting)
	err = x.record(acting, end)
	if err != nil && unanswered(err) {
		x.tell(EventNotRecorded, err)
		x.settleLater(acting, end)
		return false, nil
	}
	x.lease.stop()
	x.recorded(end, err)
	return err == nil, err
}

func (x *execution) noticeLoss(acting context.Context) {
	if cause := context.Cause(acting); errors.Is(cause, ErrLeaseLost) {
		x.tell(EventLeaseLost, cause)
	}
}

// recorded tells how recording ended.
func (x *execution) recorded(end ending, err error) {
	switch {
	case err != nil:
		x.tell(EventRecordingFailed, err)
	case end.outcome != nil:
		x.tell(EventRecorded, nil)
	case end.effect == store.EffectNone:
		x.tell(EventReleased, nil)
	default:
		x.tell(EventUnknown, nil)
	}
}

func (x *execution) notifyClaim(answer store.ClaimAnswer, err error) {
	switch {
	case errors.Is(err, store.ErrFingerprintMismatch):
		x.tell(EventMismatch, err)
	case err != nil && unanswered(err):
		if x.failOpen {
			x.tell(EventFailedOpen, err)
		} else {
			x.tell(EventStoreDown, err)
		}
	case err != nil:
		x.tell(EventRefused, err)
	case answer.Completed != nil:
		x.report(Event{Kind: EventReplayed, Age: answer.Completed.Age, Retention: answer.Completed.Retention})
	case answer.Granted != nil && answer.Granted.Unsettled:
		x.tell(EventTakeover, nil)
	case answer.Granted != nil:
		x.tell(EventGranted, nil)
	case answer.InProgress != nil:
		x.tell(EventInProgress, nil)
	case answer.Unresolved != nil:
		x.tell(EventUnresolved, nil)
	}
	if answer.FingerprintIncomparable {
		x.tell(EventIncomparable, nil)
	}
}

func (x *execution) tell(kind EventKind, err error) {
	x.report(Event{Kind: kind, Err: err})
}

func (x *execution) report(e Event) {
	if x.notify == nil {
		return
	}
	e.Namespace, e.Scope, e.Observed = x.request.Key.Namespace, x.request.Key.Scope, x.observed
	x.notify(e)
}
