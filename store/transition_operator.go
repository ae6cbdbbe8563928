package store

import (
	"fmt"
	"time"
)

// operate is settle for what operators do.
func operate(ns *Namespace, refused error, decide func() (Change, error)) (Change, error) {
	_, change, err := settle(ns, refused, func() (struct{}, Change, error) {
		change, err := decide()
		return struct{}{}, change, err
	})
	return change, err
}

// DecideResolve is the table's Resolve. For old see [DecideClaim].
func DecideResolve(old *Record, ns *Namespace, req ResolveRequest, now time.Time) (Change, error) {
	var fault error
	if req.Outcome != nil {
		fault = ns.checkOutcome(req.Outcome)
	}
	return operate(ns, ns.refuse(old, req.Epoch, fault, now), func() (Change, error) { return decideResolve(old, req, now) })
}

func decideResolve(old *Record, req ResolveRequest, now time.Time) (Change, error) {
	rec := live(old, now)
	if rec == nil {
		return Change{}, KeyNotFound()
	}
	if err := rec.expect(req.Fence, req.AnyFence); err != nil {
		return Change{}, err
	}
	if !rec.Lapsed(now) {
		return Change{}, Refuse(ErrNotLapsed, "only a key whose lease ended without an outcome can be settled")
	}
	next := rec.endAttempt(now)
	if req.Outcome != nil {
		next.complete(req.Outcome, req.Outcome.Digest(), now)
	} else {
		next.end(StateReleased, now)
	}
	return forced(rec, next, EventResolved, req.Actor, req.Reason, now), nil
}

// DecideForceRelease is the table's ForceRelease. For old see [DecideClaim].
func DecideForceRelease(old *Record, ns *Namespace, req ForceReleaseRequest, now time.Time) (Change, error) {
	return operate(ns, ns.refuse(old, req.Epoch, nil, now), func() (Change, error) { return decideForceRelease(old, req, now) })
}

func decideForceRelease(old *Record, req ForceReleaseRequest, now time.Time) (Change, error) {
	rec := live(old, now)
	if rec == nil {
		return Change{}, KeyNotFound()
	}
	if err := rec.expect(req.Fence, req.AnyFence); err != nil {
		return Change{}, err
	}
	if rec.State != StateInProgress {
		return Change{}, Refuse(ErrNotHeld, "the last attempt has already ended")
	}
	next := rec.endAttempt(now)
	next.LapsePolicy = Takeover
	next.LeaseEnd = earlier(rec.LeaseEnd, now)
	next.ExpiresAt = now.Add(rec.Retention)
	return forced(rec, next, EventForceReleased, req.Actor, req.Reason, now), nil
}

// expect refuses what an operator decided about an earlier state of the record.
func (r *Record) expect(fence int64, any bool) error {
	if any || r.Fence == fence {
		return nil
	}
	return Refuse(ErrStaleFence, fmt.Sprintf(
		"%d was expected, and it is %d; either this was done before, or the key went on: inspect it", fence, r.Fence))
}

// endAttempt returns the record with a grown fence that no attempt holds.
func (r *Record) endAttempt(now time.Time) *Record {
	next := *r
	next.Fence = nextFence(r, now)
	next.Ended = withEnded(r.Ended, r.AttemptID)
	next.AttemptID = ""
	next.ReleasedWith = 0
	return &next
}

func forced(rec, next *Record, kind EventKind, actor, reason string, now time.Time) Change {
	event := rec.event(kind, now)
	event.NewFence, event.Actor, event.Reason = next.Fence, actor, reason
	return Change{Record: next, Event: event}
}
