package storepb

import (
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

func recoveryToProto(steps []store.RecoveryStep) []*pb.RecoveryStep {
	var out []*pb.RecoveryStep
	for _, step := range steps {
		out = append(out, &pb.RecoveryStep{
			At:            timeToProto(step.At),
			Kind:          pb.RecoveryKind(step.Kind),
			ForNew:        step.ForNew,
			Floor:         timeToProto(step.Floor),
			CompleteUntil: timeToProto(step.CompleteUntil),
			Actor:         step.Actor,
			Reason:        step.Reason,
		})
	}
	return out
}

func recoveryFromProto(r *reader, list []*pb.RecoveryStep) []store.RecoveryStep {
	var out []store.RecoveryStep
	for _, m := range list {
		out = append(out, store.RecoveryStep{
			At:            r.time("recovery step at", m.GetAt()),
			Kind:          enum(r, "recovery kind", m.GetKind(), store.RecoveryCarried),
			ForNew:        m.GetForNew(),
			Floor:         r.time("recovery step's floor", m.GetFloor()),
			CompleteUntil: r.time("complete until", m.GetCompleteUntil()),
			Actor:         m.GetActor(),
			Reason:        m.GetReason(),
		})
	}
	return out
}

// BeginRecoveryRequestToProto returns the message of a request.
func BeginRecoveryRequestToProto(r store.BeginRecoveryRequest) *pb.BeginRecoveryRequest {
	return &pb.BeginRecoveryRequest{CompleteUntil: timeToProto(r.CompleteUntil), Actor: r.Actor, Reason: r.Reason, Namespace: r.Namespace}
}

// BeginRecoveryRequestFromProto returns the request of a message, or ErrInvalidArgument.
func BeginRecoveryRequestFromProto(m *pb.BeginRecoveryRequest) (store.BeginRecoveryRequest, error) {
	var r reader
	req := store.BeginRecoveryRequest{
		CompleteUntil: r.time("complete until", m.GetCompleteUntil()), Actor: m.GetActor(), Reason: m.GetReason(), Namespace: m.GetNamespace(),
	}
	return req, r.err
}

// LiftRecoveryRequestToProto returns the message of a request.
func LiftRecoveryRequestToProto(r store.LiftRecoveryRequest) *pb.LiftRecoveryRequest {
	return &pb.LiftRecoveryRequest{
		Namespace: r.Namespace, ForNew: r.ForNew, Actor: r.Actor, Reason: r.Reason,
		NothingKnown: r.NothingKnown, LeasesEnded: r.LeasesEnded, AllRegions: r.AllRegions,
	}
}

// LiftRecoveryRequestFromProto returns the request of a message. It cannot fail.
func LiftRecoveryRequestFromProto(m *pb.LiftRecoveryRequest) (store.LiftRecoveryRequest, error) {
	return store.LiftRecoveryRequest{
		Namespace: m.GetNamespace(), ForNew: m.GetForNew(), Actor: m.GetActor(), Reason: m.GetReason(),
		NothingKnown: m.GetNothingKnown(), LeasesEnded: m.GetLeasesEnded(), AllRegions: m.GetAllRegions(),
	}, nil
}

// ImportRequestToProto returns the message of a request.
func ImportRequestToProto(r store.ImportRequest) *pb.ImportOutcomeRequest {
	m := &pb.ImportOutcomeRequest{
		Key:         KeyToProto(r.Key),
		Outcome:     OutcomeToProto(r.Outcome),
		CompletedAt: timeToProto(r.CompletedAt),
		Actor:       r.Actor,
		Reason:      r.Reason,
	}
	if !r.AnyFingerprint {
		m.Fingerprint = &pb.Fingerprint{Version: r.Fingerprint.Version, Digest: []byte(r.Fingerprint.Digest)}
	}
	return m
}

// ImportRequestFromProto returns the request of a message, or ErrInvalidArgument.
func ImportRequestFromProto(m *pb.ImportOutcomeRequest) (store.ImportRequest, error) {
	var r reader
	req := store.ImportRequest{
		Key:            KeyFromProto(m.GetKey()),
		Fingerprint:    FingerprintFromProto(m.GetFingerprint()),
		AnyFingerprint: m.GetFingerprint() == nil,
		Outcome:        OutcomeFromProto(m.GetOutcome()),
		CompletedAt:    r.time("completed at", m.GetCompletedAt()),
		Actor:          m.GetActor(),
		Reason:         m.GetReason(),
	}
	return req, r.err
}

// ImportAnswerToProto returns the message of an answer.
func ImportAnswerToProto(a store.ImportAnswer) *pb.ImportOutcomeResponse {
	return &pb.ImportOutcomeResponse{Record: RecordToProto(a.Record, a.Record.LeaseEnd), Imported: a.Imported, Same: a.Same}
}

// ImportAnswerFromProto returns the answer of a message, or ErrInternal.
func ImportAnswerFromProto(m *pb.ImportOutcomeResponse) (store.ImportAnswer, error) {
	rec, err := RecordFromProto(m.GetRecord())
	return store.ImportAnswer{Record: rec, Imported: m.GetImported(), Same: m.GetSame()}, err
}

// BegunRecoveryToProto returns the message of an answer.
func BegunRecoveryToProto(b store.BegunRecovery) *pb.BeginRecoveryResponse {
	return &pb.BeginRecoveryResponse{Namespaces: NamespacesToProto(b.Namespaces), Now: timeToProto(b.Now), InForce: timeToProto(b.InForce)}
}

// BegunRecoveryFromProto returns the answer of a message, or ErrInternal.
func BegunRecoveryFromProto(m *pb.BeginRecoveryResponse) (store.BegunRecovery, error) {
	var r reader
	b := store.BegunRecovery{Now: r.time("now", m.GetNow()), InForce: r.time("in force", m.GetInForce())}
	list, err := NamespacesFromProto(m.GetNamespaces())
	b.Namespaces = list
	return b, firstOf(r.answer(), err)
}
