package store

import (
	"fmt"
	"time"
)

// settle decides an operation that is no Claim and was not refused before, unless the namespace is
// sealed and something would change.
func settle[Answer any](ns *Namespace, refused error, decide func() (Answer, Change, error)) (answer Answer, change Change, err error) {
	if refused != nil {
		return answer, Change{}, refused
	}
	decided, change, err := decide()
	if ns.Placement.Move.Phase == MoveSealed && change != (Change{}) {
		return answer, Change{}, ns.moving()
	}
	return decided, change, err
}

// DecideRenew is the table's Renew. For old see [DecideClaim].
func DecideRenew(old *Record, ns *Namespace, req RenewRequest, now time.Time) (RenewAnswer, Change, error) {
	refused := ns.refuse(old, req.Epoch, ns.checkLease(req.Lease), now)
	return settle(ns, refused, func() (RenewAnswer, Change, error) { return decideRenew(old, ns, req, now) })
}

func decideRenew(old *Record, ns *Namespace, req RenewRequest, now time.Time) (RenewAnswer, Change, error) {
	rec, err := current(old, req.AttemptID, req.Fence, now)
	switch {
	case err != nil:
		return RenewAnswer{}, Change{}, err
	case rec.State == StateCompleted:
		return RenewAnswer{}, Change{}, alreadyCompleted()
	case rec.ReleasedWith != 0:
		return RenewAnswer{}, Change{}, staleAttempt()
	case rec.Lapsed(now):
		return RenewAnswer{}, Change{}, Refuse(ErrLeaseExpired, fmt.Sprintf(
			"it ended at %s; stop acting, then complete with what happened or release as unknown",
			rec.LeaseEnd.Format(time.RFC3339Nano)))
	}
	end := now.Add(ns.leaseOrDefault(req.Lease))
	if end.After(rec.AttemptLimit) && rec.LeaseEnd.Equal(rec.AttemptLimit) {
		return RenewAnswer{}, Change{}, tooLong(rec)
	}
	next := *rec
	next.setLeaseEnd(later(rec.LeaseEnd, earlier(end, rec.AttemptLimit)))
	answer := RenewAnswer{LeaseExpiresAt: next.LeaseEnd, LeaseRemaining: next.LeaseEnd.Sub(now)}
	return answer, Change{Record: &next}, nil
}

// DecideComplete is the table's Complete. For old see [DecideClaim].
func DecideComplete(old *Record, ns *Namespace, req CompleteRequest, now time.Time) (CompleteAnswer, Change, error) {
	refused := ns.refuse(old, req.Epoch, ns.checkOutcome(req.Outcome), now)
	return settle(ns, refused, func() (CompleteAnswer, Change, error) { return decideComplete(old, req, now) })
}

func decideComplete(old *Record, req CompleteRequest, now time.Time) (CompleteAnswer, Change, error) {
	rec, err := current(old, req.AttemptID, req.Fence, now)
	if err != nil {
		return CompleteAnswer{}, evidence(live(old, now), req, now), err
	}
	digest := req.Outcome.Digest()
	switch {
	case rec.State == StateCompleted && rec.OutcomeDigest == digest:
		return CompleteAnswer{CompletedAt: rec.EndedAt, ExpiresAt: rec.ExpiresAt}, Change{}, nil
	case rec.State == StateCompleted:
		return CompleteAnswer{}, Change{}, alreadyCompleted()
	case rec.ReleasedWith == EffectNone:
		return CompleteAnswer{}, evidence(rec, req, now), staleAttempt()
	case rec.Lapsed(now) && now.After(rec.AttemptLimit):
		return CompleteAnswer{}, evidence(rec, req, now), tooLong(rec)
	}
	next := *rec
	next.complete(req.Outcome, digest, now)
	return CompleteAnswer{CompletedAt: next.EndedAt, ExpiresAt: next.ExpiresAt}, Change{Record: &next}, nil
}

// DecideRelease is the table's Release. For old see [DecideClaim].
func DecideRelease(old *Record, ns *Namespace, req ReleaseRequest, now time.Time) (ReleaseAnswer, Change, error) {
	return settle(ns, ns.refuse(old, req.Epoch, nil, now), func() (ReleaseAnswer, Change, error) { return decideRelease(old, req, now) })
}

func decideRelease(old *Record, req ReleaseRequest, now time.Time) (ReleaseAnswer, Change, error) {
	rec, err := current(old, req.AttemptID, req.Fence, now)
	switch {
	case err != nil:
		return ReleaseAnswer{}, Change{}, err
	case rec.State == StateCompleted:
		return ReleaseAnswer{}, Change{}, alreadyCompleted()
	case rec.ReleasedWith == req.Effect:
		return ReleaseAnswer{State: rec.State}, Change{}, nil
	case rec.ReleasedWith != 0:
		return ReleaseAnswer{}, Change{}, staleAttempt()
	}
	next := *rec
	next.ReleasedWith = req.Effect
	next.Ended = withEnded(rec.Ended, rec.AttemptID)
	if req.Effect == EffectNone && !rec.Unsettled() {
		next.end(StateReleased, now)
	} else {
		next.setLeaseEnd(earlier(rec.LeaseEnd, now))
	}
	return ReleaseAnswer{State: next.State}, Change{Record: &next}, nil
}

// DecideLookup is the table's Lookup. For old see [DecideClaim].
func DecideLookup(old *Record, ns *Namespace, req LookupRequest, now time.Time) (LookupAnswer, error) {
	if err := ns.refuse(old, req.Epoch, nil, now); err != nil {
		return LookupAnswer{}, err
	}
	rec := live(old, now)
	if rec == nil {
		return LookupAnswer{}, KeyNotFound()
	}
	lapsed := rec.Lapsed(now)
	answer := LookupAnswer{
		State:          rec.State,
		Lapsed:         lapsed,
		Unsettled:      rec.State == StateInProgress && (rec.Unsettled() || lapsed),
		LapsePolicy:    rec.LapsePolicy,
		Fence:          rec.Fence,
		AttemptNumber:  rec.AttemptNumber,
		GrantedAt:      rec.GrantedAt,
		LeaseExpiresAt: rec.LeaseEnd,
		EndedAt:        rec.EndedAt,
		ExpiresAt:      rec.ExpiresAt,
	}
	if lost := ns.lostLeaseEnd(rec); lapsed && rec.LapsePolicy == Takeover && now.Before(lost) {
		answer.Lapsed, answer.LeaseExpiresAt = false, lost
	}
	if rec.State == StateCompleted {
		if rec.Fingerprint == req.Fingerprint {
			answer.Outcome = rec.Outcome
		} else {
			answer.OutcomeWithheld = true
		}
	}
	return answer, nil
}

// current returns the live record if the attempt and fence are its current ones.
func current(old *Record, attemptID string, fence int64, now time.Time) (*Record, error) {
	rec := live(old, now)
	if rec == nil {
		return nil, KeyNotFound()
	}
	if !rec.holds(attemptID, fence) {
		return nil, Refuse(ErrStaleFence,
			"another attempt was granted the key, or an operator ended this one; stop acting")
	}
	return rec, nil
}

// event starts an event about the record's current attempt.
func (r *Record) event(kind EventKind, now time.Time) *Event {
	return &Event{At: now, Kind: kind, Fence: r.Fence, AttemptNumber: r.AttemptNumber}
}

func alreadyCompleted() error {
	return Refuse(ErrAlreadyCompleted, "the first outcome stays; claim the key to read it")
}

func staleAttempt() error {
	return Refuse(ErrStaleAttempt, "this attempt has released the key; a new execution needs a new attempt id")
}
