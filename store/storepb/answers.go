package storepb

import (
	"errors"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// ClaimAnswerToProto returns the message of an answer.
func ClaimAnswerToProto(a store.ClaimAnswer) *pb.ClaimResponse {
	m := &pb.ClaimResponse{FingerprintIncomparable: a.FingerprintIncomparable, Served: servedToProto(a.Served)}
	switch {
	case a.Granted != nil:
		m.Result = &pb.ClaimResponse_Granted{Granted: grantedToProto(a.Granted)}
	case a.InProgress != nil:
		m.Result = &pb.ClaimResponse_InProgress{InProgress: &pb.InProgress{
			LeaseExpiresAt: timeToProto(a.InProgress.LeaseExpiresAt),
			LeaseRemaining: durationToProto(a.InProgress.LeaseRemaining),
			RetryAfter:     durationToProto(a.InProgress.RetryAfter),
		}}
	case a.Completed != nil:
		m.Result = &pb.ClaimResponse_Completed{Completed: completedToProto(a.Completed)}
	case a.Unresolved != nil:
		m.Result = &pb.ClaimResponse_Unresolved{Unresolved: &pb.Unresolved{
			Fence:    a.Unresolved.Fence,
			LapsedAt: timeToProto(a.Unresolved.LapsedAt),
		}}
	}
	return m
}

func grantedToProto(g *store.Granted) *pb.Granted {
	return &pb.Granted{
		Fence:          g.Fence,
		AttemptNumber:  int32Of(g.AttemptNumber),
		Unsettled:      g.Unsettled,
		UnsettledSince: timeToProto(g.UnsettledSince),
		PreviousFence:  g.PreviousFence,
		GrantedAt:      timeToProto(g.GrantedAt),
		LeaseExpiresAt: timeToProto(g.LeaseExpiresAt),
		LeaseRemaining: durationToProto(g.LeaseRemaining),
		HeldFor:        durationToProto(g.HeldFor),
	}
}

func completedToProto(c *store.Completed) *pb.Completed {
	return &pb.Completed{
		Outcome:     OutcomeToProto(c.Outcome),
		Fence:       c.Fence,
		CompletedAt: timeToProto(c.CompletedAt),
		ExpiresAt:   timeToProto(c.ExpiresAt),
		Age:         durationToProto(c.Age),
		Retention:   durationToProto(c.Retention),
	}
}

var errNoResult = errors.New("the result of the claim is missing, or of a kind that is not known here")

// ClaimAnswerFromProto returns the answer of a message, or ErrInternal if it cannot be
// understood: a result of an unknown kind, a grant without a fence.
func ClaimAnswerFromProto(m *pb.ClaimResponse) (store.ClaimAnswer, error) {
	var r reader
	var a store.ClaimAnswer
	switch result := m.GetResult().(type) {
	case *pb.ClaimResponse_Granted:
		a.Granted = grantedFromProto(&r, result.Granted)
	case *pb.ClaimResponse_InProgress:
		a.InProgress = &store.InProgress{
			LeaseExpiresAt: r.time("lease expires at", result.InProgress.GetLeaseExpiresAt()),
			LeaseRemaining: r.duration("lease remaining", result.InProgress.GetLeaseRemaining()),
			RetryAfter:     r.duration("retry after", result.InProgress.GetRetryAfter()),
		}
	case *pb.ClaimResponse_Completed:
		a.Completed = completedFromProto(&r, result.Completed)
	case *pb.ClaimResponse_Unresolved:
		a.Unresolved = &store.Unresolved{
			Fence:    result.Unresolved.GetFence(),
			LapsedAt: r.time("lapsed at", result.Unresolved.GetLapsedAt()),
		}
	default:
		return store.ClaimAnswer{}, notUnderstood(errNoResult)
	}
	if r.err != nil {
		return store.ClaimAnswer{}, r.answer()
	}
	a.FingerprintIncomparable, a.Served = m.GetFingerprintIncomparable(), servedFromProto(m.GetServed())
	return a, nil
}

func grantedFromProto(r *reader, m *pb.Granted) *store.Granted {
	if m.GetFence() <= 0 {
		r.fail("a grant has the fence %d", m.GetFence())
	}
	return &store.Granted{
		Fence:          m.GetFence(),
		AttemptNumber:  int(m.GetAttemptNumber()),
		Unsettled:      m.GetUnsettled(),
		UnsettledSince: r.unsettledSince(m),
		PreviousFence:  m.GetPreviousFence(),
		GrantedAt:      r.time("granted at", m.GetGrantedAt()),
		LeaseExpiresAt: r.time("lease expires at", m.GetLeaseExpiresAt()),
		LeaseRemaining: r.duration("lease remaining", m.GetLeaseRemaining()),
		HeldFor:        r.duration("held for", m.GetHeldFor()),
	}
}

func completedFromProto(r *reader, m *pb.Completed) *store.Completed {
	if m.GetOutcome() == nil {
		r.fail("a completed key has no outcome")
	}
	return &store.Completed{
		Outcome:     OutcomeFromProto(m.GetOutcome()),
		Fence:       m.GetFence(),
		CompletedAt: r.time("completed at", m.GetCompletedAt()),
		ExpiresAt:   r.time("expires at", m.GetExpiresAt()),
		Age:         r.duration("age", m.GetAge()),
		Retention:   r.duration("retention", m.GetRetention()),
	}
}

// RenewAnswerToProto returns the message of an answer.
func RenewAnswerToProto(a store.RenewAnswer) *pb.RenewResponse {
	return &pb.RenewResponse{
		LeaseExpiresAt: timeToProto(a.LeaseExpiresAt),
		LeaseRemaining: durationToProto(a.LeaseRemaining),
		HeldFor:        durationToProto(a.HeldFor),
		Served:         servedToProto(a.Served),
	}
}

// RenewAnswerFromProto returns the answer of a message, or ErrInternal.
func RenewAnswerFromProto(m *pb.RenewResponse) (store.RenewAnswer, error) {
	var r reader
	a := store.RenewAnswer{
		LeaseExpiresAt: r.time("lease expires at", m.GetLeaseExpiresAt()),
		LeaseRemaining: r.duration("lease remaining", m.GetLeaseRemaining()),
		HeldFor:        r.duration("held for", m.GetHeldFor()),
		Served:         servedFromProto(m.GetServed()),
	}
	return a, r.answer()
}

// CompleteAnswerToProto returns the message of an answer.
func CompleteAnswerToProto(a store.CompleteAnswer) *pb.CompleteResponse {
	return &pb.CompleteResponse{
		CompletedAt: timeToProto(a.CompletedAt),
		ExpiresAt:   timeToProto(a.ExpiresAt),
		Served:      servedToProto(a.Served),
	}
}

// CompleteAnswerFromProto returns the answer of a message, or ErrInternal.
func CompleteAnswerFromProto(m *pb.CompleteResponse) (store.CompleteAnswer, error) {
	var r reader
	a := store.CompleteAnswer{
		CompletedAt: r.time("completed at", m.GetCompletedAt()),
		ExpiresAt:   r.time("expires at", m.GetExpiresAt()),
		Served:      servedFromProto(m.GetServed()),
	}
	return a, r.answer()
}

// ReleaseAnswerToProto returns the message of an answer.
func ReleaseAnswerToProto(a store.ReleaseAnswer) *pb.ReleaseResponse {
	return &pb.ReleaseResponse{State: pb.State(a.State), Served: servedToProto(a.Served)}
}

// ReleaseAnswerFromProto returns the answer of a message, or ErrInternal.
func ReleaseAnswerFromProto(m *pb.ReleaseResponse) (store.ReleaseAnswer, error) {
	var r reader
	a := store.ReleaseAnswer{
		State:  enum(&r, "state", m.GetState(), store.StateReleased),
		Served: servedFromProto(m.GetServed()),
	}
	return a, r.answer()
}

// LookupAnswerToProto returns the message of an answer.
func LookupAnswerToProto(a store.LookupAnswer) *pb.LookupResponse {
	return &pb.LookupResponse{
		State:           pb.State(a.State),
		Lapsed:          a.Lapsed,
		Unsettled:       a.Unsettled,
		LapsePolicy:     pb.LapsePolicy(a.LapsePolicy),
		Fence:           a.Fence,
		AttemptNumber:   int32Of(a.AttemptNumber),
		GrantedAt:       timeToProto(a.GrantedAt),
		LeaseExpiresAt:  timeToProto(a.LeaseExpiresAt),
		EndedAt:         timeToProto(a.EndedAt),
		ExpiresAt:       timeToProto(a.ExpiresAt),
		Outcome:         OutcomeToProto(a.Outcome),
		OutcomeWithheld: a.OutcomeWithheld,
		Served:          servedToProto(a.Served),
	}
}

// LookupAnswerFromProto returns the answer of a message, or ErrInternal.
func LookupAnswerFromProto(m *pb.LookupResponse) (store.LookupAnswer, error) {
	var r reader
	a := store.LookupAnswer{
		State:           enum(&r, "state", m.GetState(), store.StateReleased),
		Lapsed:          m.GetLapsed(),
		Unsettled:       m.GetUnsettled(),
		LapsePolicy:     enum(&r, "lapse policy", m.GetLapsePolicy(), store.Hold),
		Fence:           m.GetFence(),
		AttemptNumber:   int(m.GetAttemptNumber()),
		GrantedAt:       r.time("granted at", m.GetGrantedAt()),
		LeaseExpiresAt:  r.time("lease expires at", m.GetLeaseExpiresAt()),
		EndedAt:         r.time("ended at", m.GetEndedAt()),
		ExpiresAt:       r.time("expires at", m.GetExpiresAt()),
		Outcome:         OutcomeFromProto(m.GetOutcome()),
		OutcomeWithheld: m.GetOutcomeWithheld(),
		Served:          servedFromProto(m.GetServed()),
	}
	return a, r.answer()
}
