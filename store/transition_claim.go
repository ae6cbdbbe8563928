package store

import (
	"fmt"
	"slices"
	"time"
)

// DecideClaim is the table's Claim. Old is whatever is stored for the key, expired or
// not; nil if nothing is. The request must have passed [ClaimRequest.Validate]. Now is the
// store's clock, wall the wall clock beside it.
func DecideClaim(old *Record, ns *Namespace, req ClaimRequest, now, wall time.Time) (ClaimAnswer, Change, error) {
	answer, change, err := decideClaim(old, ns, req, now, wall)
	if ns.Placement.Move.stops() && change != (Change{}) {
		return ClaimAnswer{}, Change{}, ns.moving()
	}
	return answer, change, err
}

func decideClaim(old *Record, ns *Namespace, req ClaimRequest, now, wall time.Time) (ClaimAnswer, Change, error) {
	if err := ns.refuse(old, req.Epoch, ns.checkClaim(req, now, wall), now); err != nil {
		return ClaimAnswer{}, Change{}, err
	}
	rec := live(old, now)
	if rec == nil {
		return claimNew(old, ns, req, now)
	}
	if slices.Contains(rec.Ended, req.AttemptID) {
		return ClaimAnswer{}, Change{}, Refuse(ErrStaleAttempt,
			"this attempt ended without an outcome; a new execution needs a new attempt id")
	}
	if rec.State == StateReleased {
		return claimReleased(rec, ns, req, now)
	}
	match := rec.Fingerprint.Compare(req.Fingerprint)
	if match == MatchDifferent {
		return ClaimAnswer{}, Change{}, Refuse(ErrFingerprintMismatch,
			"send the request that the key was made for, or make a new key for a new intent")
	}
	answer, change, err := claimHeld(rec, ns, req, now)
	answer.FingerprintIncomparable = match == MatchIncomparable && err == nil
	return answer, change, err
}

// claimHeld decides rows 4 to 8: completed or in progress.
func claimHeld(rec *Record, ns *Namespace, req ClaimRequest, now time.Time) (ClaimAnswer, Change, error) {
	switch {
	case rec.State == StateCompleted:
		return completed(rec, now), Change{}, nil
	case rec.AttemptID == req.AttemptID:
		return claimAgain(rec, ns, req, now)
	case !rec.Lapsed(now):
		return inProgress(rec.LeaseEnd, now), Change{}, nil
	case rec.LapsePolicy == Hold:
		return ClaimAnswer{Unresolved: &Unresolved{Fence: rec.Fence, LapsedAt: rec.LeaseEnd}}, Change{}, nil
	case now.Before(ns.lostLeaseEnd(rec)):
		return inProgress(ns.lostLeaseEnd(rec), now), Change{}, nil
	default:
		answer, change := takeOver(rec, ns, req, now)
		return answer, change, nil
	}
}

// claimReleased grants a key whose last attempt had no effect, unless one that came after
// it may have been forgotten.
func claimReleased(rec *Record, ns *Namespace, req ClaimRequest, now time.Time) (ClaimAnswer, Change, error) {
	if ns.mayHaveForgotten(rec.knownSince(), req.IntentTime) {
		return ClaimAnswer{}, Change{}, ns.unknownHistory()
	}
	next := grant(rec, ns, req, now)
	next.AttemptNumber = rec.AttemptNumber + 1
	next.PreviousFence = rec.Fence
	next.Ended = rec.Ended
	return granted(next, now), Change{Record: next}, nil
}

// claimNew grants a key that has no live record, unless it may have been forgotten.
func claimNew(old *Record, ns *Namespace, req ClaimRequest, now time.Time) (ClaimAnswer, Change, error) {
	if err := ns.checkHistory(req.IntentTime, now); err != nil {
		return ClaimAnswer{}, Change{}, err
	}
	next := grant(old, ns, req, now)
	next.AttemptNumber = 1
	return granted(next, now), Change{Record: next}, nil
}

// claimAgain answers a Claim that the holder sent again. If another attempt may have had
// the key since and been forgotten, the holder is told so, and given no fresh lease while that
// one may have one.
func claimAgain(rec *Record, ns *Namespace, req ClaimRequest, now time.Time) (ClaimAnswer, Change, error) {
	next := *rec
	if ns.mayHaveForgotten(rec.GrantedAt, req.IntentTime) {
		next.UnsettledSince = rec.earliestUnsettled() // what is forgotten was granted after this one
	}
	switch {
	case rec.Lapsed(now) && !now.Before(rec.AttemptLimit):
		return ClaimAnswer{}, Change{}, tooLong(rec)
	case rec.Lapsed(now) && now.Before(ns.lostLeaseEnd(rec)):
		return inProgress(ns.lostLeaseEnd(rec), now), Change{}, nil
	case rec.Lapsed(now):
		next.setLeaseEnd(earlier(now.Add(ns.leaseOrDefault(req.Lease)), rec.AttemptLimit))
	case next.UnsettledSince.Equal(rec.UnsettledSince):
		return granted(rec, now), Change{}, nil
	}
	return granted(&next, now), Change{Record: &next}, nil
}

// takeOver grants a lapsed key to another attempt.
func takeOver(rec *Record, ns *Namespace, req ClaimRequest, now time.Time) (ClaimAnswer, Change) {
	next := grant(rec, ns, req, now)
	next.AttemptNumber = rec.AttemptNumber + 1
	next.PreviousFence = rec.Fence
	next.Fingerprint = rec.Fingerprint
	next.UnsettledSince = rec.earliestUnsettled()
	next.Ended = withEnded(rec.Ended, rec.AttemptID)
	event := rec.event(EventTakeover, now)
	event.NewFence = next.Fence
	return granted(next, now), Change{Record: next, Event: event}
}

// grant returns the record of a fresh grant that follows old.
func grant(old *Record, ns *Namespace, req ClaimRequest, now time.Time) *Record {
	next := &Record{
		Key:          req.Key,
		State:        StateInProgress,
		Fence:        nextFence(old, now),
		AttemptID:    req.AttemptID,
		Fingerprint:  req.Fingerprint,
		GrantedAt:    now,
		AttemptLimit: now.Add(ns.MaxAttempt),
		LapsePolicy:  ns.LapsePolicy,
		Retention:    ns.retentionFor(req.IntentTime, now),
	}
	if req.Hold {
		next.LapsePolicy = Hold
	}
	next.setLeaseEnd(earlier(now.Add(ns.leaseOrDefault(req.Lease)), next.AttemptLimit))
	return next
}

// retentionFor is the retention of a grant at now. The wall clock may let an intent be from
// beyond what the store's clock would. It is too old (see checkHistory) only when retention
// has passed since, and until then its record must not be forgotten; nor if the namespace's
// retention has been raised by then.
func (n *Namespace) retentionFor(intent, now time.Time) time.Duration {
	beyond := intent.Add(-n.Skew()).Sub(now)
	if beyond <= 0 { // also if it is not known
		return n.Retention
	}
	return n.Tier.MaxRetention() + (beyond + time.Microsecond - 1).Truncate(time.Microsecond)
}

func granted(rec *Record, now time.Time) ClaimAnswer {
	return ClaimAnswer{Granted: &Granted{
		Fence:          rec.Fence,
		AttemptNumber:  rec.AttemptNumber,
		Unsettled:      rec.Unsettled(),
		UnsettledSince: rec.UnsettledSince,
		PreviousFence:  rec.PreviousFence,
		GrantedAt:      rec.GrantedAt,
		LeaseExpiresAt: rec.LeaseEnd,
		LeaseRemaining: rec.LeaseEnd.Sub(now),
	}}
}

func completed(rec *Record, now time.Time) ClaimAnswer {
	return ClaimAnswer{Completed: &Completed{
		Outcome:     rec.Outcome,
		Fence:       rec.Fence,
		CompletedAt: rec.EndedAt,
		ExpiresAt:   rec.ExpiresAt,
		Age:         now.Sub(rec.EndedAt),
		Retention:   rec.Retention,
	}}
}

func inProgress(leaseEnd, now time.Time) ClaimAnswer {
	return ClaimAnswer{InProgress: inProgressUntil(leaseEnd, leaseEnd.Sub(now))}
}

func inProgressUntil(leaseEnd time.Time, remaining time.Duration) *InProgress {
	return &InProgress{LeaseExpiresAt: leaseEnd, LeaseRemaining: remaining, RetryAfter: min(remaining, time.Second)}
}

// checkHistory refuses what may have been done and forgotten.
func (n *Namespace) checkHistory(intent, now time.Time) error {
	if n.mayHaveForgotten(time.Time{}, intent) {
		return n.unknownHistory()
	}
	if intent.IsZero() {
		return nil
	}
	retention := n.RetentionSince(intent.Add(-n.Skew()))
	if !now.Before(intent.Add(retention - n.Skew())) {
		return Refuse(ErrKeyExpired, fmt.Sprintf(
			"the intent was made at %s and outcomes are kept for %s; whether it was done is no longer known here",
			intent.UTC().Format(time.RFC3339), SpanText(retention)))
	}
	return nil
}

// mayHaveForgotten reports whether a recovery floor stands that neither the intent nor what
// is known of it is newer than: what became of it after that may be lost.
func (n *Namespace) mayHaveForgotten(known, intent time.Time) bool {
	newer := intent.After(n.NewerThan()) // never, if it is not known
	return !n.RecoveryFloor.IsZero() && !newer && !known.After(n.RecoveryFloor)
}

// lostLeaseEnd is when the last lease of the key has ended that may have been given, or made longer,
// and been forgotten. Whatever intent comes now, the record is of one from before. Zero: there is none.
func (n *Namespace) lostLeaseEnd(rec *Record) time.Time {
	if !n.mayHaveForgotten(rec.knownSince(), time.Time{}) {
		return time.Time{}
	}
	return n.RecoveryFloor.Add(MaxLease)
}

// NewerThan is what an intent time must be after to be newer than the recovery floor. What the
// namespace's skew was when it was claimed is not known; so the largest counts.
func (n *Namespace) NewerThan() time.Time { return n.RecoveryFloor.Add(MaxSkew) }

func (n *Namespace) unknownHistory() error {
	return Refuse(ErrUnknownHistory, fmt.Sprintf(
		"the store may have forgotten what was done before %s, and clocks differ: only an intent time after %s is taken as newer; "+
			"find out elsewhere whether it was done; an operator lifts the recovery floor",
		n.RecoveryFloor.UTC().Format(time.RFC3339Nano), n.NewerThan().UTC().Format(time.RFC3339Nano)))
}

func tooLong(rec *Record) error {
	return Refuse(ErrAttemptTooLong, fmt.Sprintf("the attempt was granted at %s and could go on until %s",
		rec.GrantedAt.Format(time.RFC3339), rec.AttemptLimit.Format(time.RFC3339)))
}
