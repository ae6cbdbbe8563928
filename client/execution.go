package client

import (
	"cmp"
	"context"
	"errors"
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
	quiet    *quiet
	observed bool // whether nothing is enforced
	detached bool // whether whoever acts goes on without the caller

	attempt  *Attempt
	lease    *lease
	unstored bool // the outcome that answers the claim is known to this process alone
}

// claim asks for the right to act. Either it was granted, and the caller runs act, or the
// stored outcome or the refusal is returned.
func (x *execution) claim(ctx context.Context) (acting context.Context, replay *store.Completed, err error) {
	x.request.AttemptID = newAttemptID()
	answer, sent, err := x.askWaiting(ctx)
	if x.failOpen && x.request.Wait > 0 && ctx.Err() == nil && isContextError(err) {
		// It was allowed to wait, and may have waited too long: that is no sign that the
		// store is down. One that need not wait tells.
		answer, sent, err = x.ask(ctx, 0)
	}
	if g := answer.Granted; err == nil && g != nil && g.Unsettled {
		if p := pendingWith(x.store, x.request.Key); p != nil {
			answer, err = x.finish(ctx, answer, sent, p)
		}
	}
	failed := err
	if x.failsOpen(ctx, err) {
		answer, err = x.known(err)
	}
	x.notifyClaim(ctx, answer, err)
	if mayBeGranted(failed) && !x.failsOpen(ctx, err) {
		x.giveBack(ctx, failed)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case answer.Completed != nil:
		return nil, answer.Completed, nil
	case answer.Granted != nil:
		acting = x.granted(ctx, answer.Granted, sent)
		if ctx.Err() != nil && !x.observed { // nobody waits for it any more, and nobody has acted
			_, _ = x.settle(acting, ending{effect: store.EffectNone})
			return nil, nil, ctx.Err()
		}
		return acting, nil, nil
	default:
		return nil, nil, notGranted(answer)
	}
}

// mayBeGranted reports whether a claim that ended with err may have been granted
// nevertheless, now or when it arrives.
func mayBeGranted(err error) bool {
	return unanswered(err) && !isAny(err, store.ErrOverloaded, store.ErrQuota, store.ErrNamespaceMoving, store.ErrNoHome)
}

// giveBack has what an unanswered claim was granted released in the background, as nobody
// acts under it: others would wait for the lease to end, and then be told that somebody
// may have acted. It gives up when the lease would have ended anyway.
func (x *execution) giveBack(ctx context.Context, failed error) {
	if isContextError(failed) {
		failed = nil // it may have arrived: at once
	}
	lease := x.request.Lease
	if lease == 0 {
		lease = store.DefaultLease
	}
	releases.run(0, func() {
		ctx, cancel := context.WithTimeout(onItsOwn(ctx), lease)
		defer cancel()
		_ = persist(ctx, failed, mayBeGranted, pause, x.release) // if it fails the key lapses
	})
}

// release claims again, as the same attempt, to learn whether that is granted, and releases it: or
// completes it, if this process knows what the attempt before has done.
func (x *execution) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	req := x.request
	req.Wait = 0
	sent := time.Now()
	answer, err := x.store.Claim(ctx, req)
	x.quiet.answered(err)
	if err != nil || answer.Granted == nil {
		return err
	}
	if p := pendingWith(x.store, req.Key); p != nil && answer.Granted.Unsettled {
		late := *x // whom the claim was refused to goes on
		_, err = late.finish(ctx, answer, sent, p)
		return err
	}
	_, err = x.store.Release(ctx, store.ReleaseRequest{Key: req.Key, AttemptID: req.AttemptID, Fence: answer.Granted.Fence, Effect: store.EffectNone})
	return err
}

// failsOpen reports whether the caller acts without a guard: only if idemd, or the key's home, does
// not answer. Whoever refuses is there, and may have granted the key to somebody else.
func (x *execution) failsOpen(ctx context.Context, err error) bool {
	return x.failOpen && noAnswer(err) && ctx.Err() == nil
}

func (x *execution) granted(ctx context.Context, g *store.Granted, sent time.Time) context.Context {
	if x.detached {
		ctx = context.WithoutCancel(ctx)
	}
	acting, held := holdLease(ctx, x.store, x.request, g, sent)
	x.lease = held
	x.attempt = &Attempt{
		Key: x.request.Key, ID: x.request.AttemptID, Fence: g.Fence, Number: g.AttemptNumber,
		Unsettled: g.Unsettled, PreviousFence: g.PreviousFence, lease: held, observed: x.observed,
	}
	x.attempt.steps.Begin(ctx, x.attempt.StepTime)
	x.attempt.Since = since(g, x.request.IntentTime)
	x.attempt.begun = sent.Add(g.HeldFor - g.GrantedAt.Sub(x.attempt.Since)) // it was granted then, or later
	return context.WithValue(withAttempt(acting, x.attempt), outsideKey{}, ctx)
}

// outsideKey is the key of the context that an attempt was begun in.
type outsideKey struct{}

// outside returns the context that the outermost attempt was begun in which ctx is in: no lease ends it.
func outside(ctx context.Context) context.Context {
	for {
		parent, ok := ctx.Value(outsideKey{}).(context.Context)
		if !ok {
			return ctx
		}
		ctx = parent
	}
}

// since is when the first attempt was granted that may have acted: none did before the intent was made,
// if it is not known better.
func since(g *store.Granted, made time.Time) time.Time {
	switch {
	case !g.Unsettled:
		return g.GrantedAt
	case g.UnsettledSince.Equal(store.LongAgo) && !made.IsZero():
		return made
	default:
		return g.UnsettledSince
	}
}

// notGranted is the refusal for an expected answer that leaves a caller with nothing.
func notGranted(answer store.ClaimAnswer) error {
	switch {
	case answer.InProgress != nil:
		return &store.Error{
			Sentinel: store.ErrKeyInProgress, Detail: "send the same request again later",
			RetryAfter: answer.InProgress.RetryAfter,
		}
	case answer.Unresolved != nil:
		return store.Refuse(store.ErrKeyUnresolved, "an attempt lapsed and the key is held: its holder may still report, else an operator settles it")
	default:
		return store.Refuse(store.ErrInternal, "the claim got an answer that this client does not know")
	}
}

// act runs fn, which says how it ended, under the lease, and records that, which it returns: while a step is in
// doubt it is another. If fn panics, or ends its goroutine, the key is given up as unknown and the panic goes on.
func (x *execution) act(acting context.Context, fn func(context.Context) ending) (end ending, recorded bool, err error) {
	defer x.begin()()
	returned := false
	defer func() {
		if !returned {
			_, _ = x.settle(acting, unknown(errNotReturned)) // the panic is what is told
		}
	}()
	end = x.attempt.weighed(fn(acting))
	returned = true
	recorded, err = x.settle(acting, end)
	return end, recorded, err
}

// observeTimeout bounds what observing adds to a call while the store does not answer.
const observeTimeout = 250 * time.Millisecond

// observe runs fn whatever the store says, and reports what that said. How fn ended is recorded
// if it was granted. Then it finds its attempt as it will once the guard enforces, but the lease
// does not end it.
func (x *execution) observe(ctx context.Context, fn func(context.Context) ending) {
	x.patience, x.request.Wait = observeTimeout, 0
	x.request.Hold = false // a key that lapses would wait for a person, though every repeat runs
	acting, replay, err := x.claim(ctx)
	if err != nil || replay != nil {
		fn(ctx)
		return
	}
	end := unknown(errNotReturned)
	defer func() {
		x.noticeLoss(acting)
		x.settleLater(ctx, end)
	}()
	end = x.attempt.weighed(fn(withAttempt(ctx, x.attempt)))
}

// settle records how the attempt ended. An error is the store's final word that another
// attempt or an operator came in between; what was done does not count then. If it could
// not be recorded for another reason, what was done stands.
func (x *execution) settle(acting context.Context, end ending) (recorded bool, err error) {
	x.noticeLoss(acting)
	end.fit()
	err = x.record(acting, &end)
	if err != nil && end.again(err) {
		x.tell(EventNotRecorded, err)
		x.recordLater(acting, end, err)
		return false, nil
	}
	x.lease.stop()
	x.recorded(end, err)
	if superseded(err) {
		return false, err
	}
	return err == nil, nil
}

func superseded(err error) bool {
	return isAny(err, store.ErrStaleFence, store.ErrStaleAttempt, store.ErrAlreadyCompleted)
}

// noticeLoss ends the context if the lease has ended: after this process was stopped for a
// while, whoever acts may come here before the timer of the lease does.
func (x *execution) noticeLoss(acting context.Context) {
	if time.Until(x.lease.until()) <= 0 {
		x.lease.lost(errDeadlinePassed)
	}
	if cause := context.Cause(acting); errors.Is(cause, ErrLeaseLost) {
		x.tell(EventLeaseLost, cause)
	}
}

// recorded tells how recording ended. Nothing is lost if it could not be told that nobody knows: the
// lapse of the key says the same.
func (x *execution) recorded(end ending, err error) {
	switch {
	case end.isUnknown():
		x.tell(EventUnknown, errors.Join(end.why, err))
	case err != nil:
		x.tell(EventRecordingFailed, err)
	case end.outcome != nil && end.outcome.BodyOmitted:
		x.tell(EventRecorded, cmp.Or(end.why, store.ErrOutcomeOmitted))
	case end.outcome != nil:
		x.tell(EventRecorded, nil)
	default:
		x.tell(EventReleased, nil)
	}
}

func (x *execution) notifyClaim(ctx context.Context, answer store.ClaimAnswer, err error) {
	switch {
	case errors.Is(err, store.ErrFingerprintMismatch):
		x.tell(EventMismatch, err)
	case x.failsOpen(ctx, err):
		x.tell(EventFailedOpen, err)
	case isDown(err):
		x.tell(EventStoreDown, err)
	case err != nil:
		x.tell(EventRefused, err)
	case answer.Completed != nil:
		x.report(replayed(answer.Completed))
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

func replayed(c *store.Completed) Event {
	e := Event{Kind: EventReplayed, Age: c.Age, Retention: c.Retention}
	if c.Outcome.BodyOmitted {
		e.Err = store.ErrOutcomeOmitted
	}
	return e
}

func (x *execution) tell(kind EventKind, err error) {
	x.report(Event{Kind: kind, Err: err})
}

func (x *execution) report(e Event) {
	if x.notify == nil {
		return
	}
	e.Namespace, e.Scope, e.Observed = x.request.Key.Namespace, x.request.Key.Scope, x.observed
	defer survive("an OnEvent hook")
	x.notify(e)
}
