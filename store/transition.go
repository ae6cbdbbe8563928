package store

import (
	"slices"
	"time"
)

// Change is what an operation does to what is stored. The zero Change does nothing.
type Change struct {
	// Record replaces the stored record.
	Record *Record
	// Event is added to the key's events.
	Event *Event
}

// nextFence is the fence of the grant or forced action that follows old at now.
func nextFence(old *Record, now time.Time) int64 {
	fence := now.UnixMicro()
	if old != nil {
		fence = max(old.Fence+1, fence)
	}
	return fence
}

// live returns old if it is a record that still counts at now, else nil.
func live(old *Record, now time.Time) *Record {
	if old == nil || old.Expired(now) {
		return nil
	}
	return old
}

// holds reports whether the attempt and fence are the record's current ones.
func (r *Record) holds(attemptID string, fence int64) bool {
	return r.AttemptID != "" && r.AttemptID == attemptID && r.Fence == fence
}

// withEnded returns the ended attempts with id as the newest.
func withEnded(ended []string, id string) []string {
	if id == "" || slices.Contains(ended, id) {
		return ended
	}
	drop := max(len(ended)+1-MaxEndedAttempts, 0)
	return append(slices.Clone(ended[drop:]), id)
}

// setLeaseEnd moves the lease end and what hangs on it.
func (r *Record) setLeaseEnd(end time.Time) {
	r.LeaseEnd = end
	r.ExpiresAt = time.Time{}
	if r.LapsePolicy == Takeover {
		r.ExpiresAt = end.Add(r.Retention)
	}
}

// end moves the record into a state that has an end and a retention.
func (r *Record) end(state State, now time.Time) {
	r.State = state
	r.EndedAt = now
	r.ExpiresAt = now.Add(r.Retention)
	r.UnsettledSince = time.Time{}
}

// complete stores the outcome in the record.
func (r *Record) complete(outcome *Outcome, digest OutcomeDigest, now time.Time) {
	r.end(StateCompleted, now)
	r.Outcome, r.OutcomeDigest = outcome, digest
	r.ReleasedWith = 0
	r.Ended = slices.DeleteFunc(slices.Clone(r.Ended), func(id string) bool { return id == r.AttemptID })
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
