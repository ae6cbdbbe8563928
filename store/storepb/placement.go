package storepb

import (
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// servedToProto returns the message of who answered; nil where there are no regions.
func servedToProto(s store.Served) *pb.Served {
	if s == (store.Served{}) {
		return nil
	}
	return &pb.Served{HomeRegion: s.Home, Forwarded: s.Forwarded, Epoch: s.Epoch}
}

func servedFromProto(m *pb.Served) store.Served {
	return store.Served{Home: m.GetHomeRegion(), Forwarded: m.GetForwarded(), Epoch: m.GetEpoch()}
}

// PlacementToProto returns the message of a placement; nil for none.
func PlacementToProto(p store.Placement) *pb.Placement {
	if p == (store.Placement{}) {
		return nil
	}
	return &pb.Placement{
		Epoch: p.Epoch, Revision: p.Revision, Rule: p.Rule,
		MoveTo: p.Move.To, MovePhase: pb.MovePhase(p.Move.Phase),
	}
}

// PlacementFromProto returns the placement of a message, or ErrInvalidArgument. No message is
// no placement.
func PlacementFromProto(m *pb.Placement) (store.Placement, error) {
	var r reader
	p := placementFromProto(&r, m)
	return p, r.err
}

func placementFromProto(r *reader, m *pb.Placement) store.Placement {
	return store.Placement{
		Epoch: m.GetEpoch(), Revision: m.GetRevision(), Rule: m.GetRule(),
		Move: store.Move{To: m.GetMoveTo(), Phase: enum(r, "move phase", m.GetMovePhase(), store.MoveFlipped)},
	}
}

// MovedToProto returns the message of a record that is carried to another store, with all
// that is kept of it, attempt ids included.
func MovedToProto(in store.Inspection) *pb.MovedRecord {
	m := &pb.MovedRecord{Record: RecordToProto(in.Record, in.Now), AttemptId: []byte(in.Record.AttemptID)}
	m.EndedAttemptIds = endedToProto(in.Record)
	for _, e := range in.Events {
		m.Events = append(m.Events, EventToProto(e))
	}
	return m
}

// MovedFromProto returns the record of a message, or ErrInternal.
func MovedFromProto(m *pb.MovedRecord) (store.Inspection, error) {
	rec, err := RecordFromProto(m.GetRecord())
	if err == nil {
		err = nameAttempts(rec, m.GetAttemptId(), m.GetEndedAttemptIds())
	}
	if err != nil {
		return store.Inspection{}, err
	}
	events, err := listFromProto(m.GetEvents(), EventFromProto)
	return store.Inspection{Record: rec, Events: events}, err
}

// PlacedToProto returns the message of what a PlaceNamespace did.
func PlacedToProto(p store.Placed) *pb.PlaceNamespaceResponse {
	return &pb.PlaceNamespaceResponse{Namespace: NamespaceToProto(p.Namespace), Now: timeToProto(p.Now), InForce: timeToProto(p.InForce)}
}

// PlacedFromProto returns what a PlaceNamespace did, or ErrInternal.
func PlacedFromProto(m *pb.PlaceNamespaceResponse) (store.Placed, error) {
	ns, err := NamespaceAnswerFromProto(m.GetNamespace())
	if err != nil {
		return store.Placed{}, err
	}
	var r reader
	p := store.Placed{Namespace: ns, Now: r.time("now", m.GetNow()), InForce: r.time("in force", m.GetInForce())}
	return p, r.answer()
}
