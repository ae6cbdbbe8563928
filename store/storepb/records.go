package storepb

import (
	"errors"
	"fmt"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// RecordToProto returns the message of a record as it stands at now, the store's time;
// nil for nil. Attempt ids are left out: whoever knows one can act in its name. They are shown
// beside the record where one is inspected or carried to another store.
func RecordToProto(rec *store.Record, now time.Time) *pb.Record {
	if rec == nil {
		return nil
	}
	return &pb.Record{
		Key:            KeyToProto(rec.Key),
		State:          pb.State(rec.State),
		Lapsed:         rec.Lapsed(now),
		Fence:          rec.Fence,
		AttemptNumber:  int32Of(rec.AttemptNumber),
		Fingerprint:    FingerprintToProto(rec.Fingerprint),
		GrantedAt:      timeToProto(rec.GrantedAt),
		LeaseExpiresAt: timeToProto(rec.LeaseEnd),
		AttemptLimit:   timeToProto(rec.AttemptLimit),
		EndedAt:        timeToProto(rec.EndedAt),
		ExpiresAt:      timeToProto(rec.ExpiresAt),
		LapsePolicy:    pb.LapsePolicy(rec.LapsePolicy),
		Retention:      durationToProto(rec.Retention),
		Unsettled:      rec.Unsettled(),
		UnsettledSince: timeToProto(rec.UnsettledSince),
		PreviousFence:  rec.PreviousFence,
		ReleasedWith:   pb.Effect(rec.ReleasedWith),
		EndedAttempts:  int32Of(len(rec.Ended)),
		Outcome:        OutcomeToProto(rec.Outcome),
		OutcomeDigest:  digestToProto(rec.OutcomeDigest),
	}
}

// SettledToProto returns the message of a record that an operator has just settled or forced:
// if it is still in progress, its lease has ended.
func SettledToProto(rec *store.Record) *pb.Record { return RecordToProto(rec, rec.LeaseEnd) }

// RecordFromProto returns the record of a message, or ErrInternal, also if there is no
// message. Its AttemptID is empty, and so is each of its Ended attempts, which only count: see
// nameAttempts.
func RecordFromProto(m *pb.Record) (*store.Record, error) {
	if m == nil {
		return nil, notUnderstood(errNoRecord)
	}
	var r reader
	rec := &store.Record{
		Key:            KeyFromProto(m.GetKey()),
		State:          enum(&r, "state", m.GetState(), store.StateReleased),
		Fence:          m.GetFence(),
		PreviousFence:  m.GetPreviousFence(),
		AttemptNumber:  int(m.GetAttemptNumber()),
		Fingerprint:    FingerprintFromProto(m.GetFingerprint()),
		GrantedAt:      r.time("granted at", m.GetGrantedAt()),
		LeaseEnd:       r.time("lease expires at", m.GetLeaseExpiresAt()),
		AttemptLimit:   r.time("attempt limit", m.GetAttemptLimit()),
		EndedAt:        r.time("ended at", m.GetEndedAt()),
		ExpiresAt:      r.time("expires at", m.GetExpiresAt()),
		LapsePolicy:    enum(&r, "lapse policy", m.GetLapsePolicy(), store.Hold),
		Retention:      r.duration("retention", m.GetRetention()),
		UnsettledSince: r.unsettledSince(m),
		ReleasedWith:   enum(&r, "released with", m.GetReleasedWith(), store.EffectUnknown),
		Ended:          endedFromProto(&r, m.GetEndedAttempts()),
		Outcome:        OutcomeFromProto(m.GetOutcome()),
		OutcomeDigest:  digestFromProto(&r, m.GetOutcomeDigest()),
	}
	if r.err != nil {
		return nil, r.answer()
	}
	return rec, nil
}

var errNoRecord = errors.New("the record is missing")

func endedFromProto(r *reader, count int32) []string {
	if count < 0 || count > store.MaxEndedAttempts {
		r.fail("a record cannot remember %d ended attempts", count)
		return nil
	}
	if count == 0 {
		return nil
	}
	return make([]string, count)
}

// nameAttempts puts the attempt ids into a record that came without them.
func nameAttempts(rec *store.Record, current []byte, ended [][]byte) error {
	if len(ended) != len(rec.Ended) {
		return notUnderstood(fmt.Errorf("a record remembers %d ended attempts, and %d are named", len(rec.Ended), len(ended)))
	}
	rec.AttemptID = string(current)
	for i, id := range ended {
		rec.Ended[i] = string(id)
	}
	return nil
}

func endedToProto(rec *store.Record) (ids [][]byte) {
	for _, id := range rec.Ended {
		ids = append(ids, []byte(id))
	}
	return ids
}

// digestToProto returns the bytes of a digest; nil for none.
func digestToProto(digest store.OutcomeDigest) []byte {
	if digest == (store.OutcomeDigest{}) {
		return nil
	}
	return digest[:]
}

func digestFromProto(r *reader, b []byte) (digest store.OutcomeDigest) {
	if n := copy(digest[:], b); len(b) != 0 && (n != len(digest) || n != len(b)) {
		r.fail("an outcome digest has %d bytes", len(b))
	}
	return digest
}

// EventToProto returns the message of an event.
func EventToProto(e store.Event) *pb.Event {
	return &pb.Event{
		At:            timeToProto(e.At),
		Kind:          pb.EventKind(e.Kind),
		Fence:         e.Fence,
		AttemptNumber: int32Of(e.AttemptNumber),
		NewFence:      e.NewFence,
		Outcome:       OutcomeToProto(e.Outcome),
		OutcomeDigest: digestToProto(e.OutcomeDigest),
		OutcomeSize:   int32Of(e.OutcomeSize),
		Actor:         e.Actor,
		Reason:        e.Reason,
	}
}

// EventFromProto returns the event of a message, or ErrInternal.
func EventFromProto(m *pb.Event) (store.Event, error) {
	var r reader
	e := store.Event{
		At:            r.time("at", m.GetAt()),
		Kind:          enum(&r, "kind", m.GetKind(), store.EventImported),
		Fence:         m.GetFence(),
		AttemptNumber: int(m.GetAttemptNumber()),
		NewFence:      m.GetNewFence(),
		Outcome:       OutcomeFromProto(m.GetOutcome()),
		OutcomeDigest: digestFromProto(&r, m.GetOutcomeDigest()),
		OutcomeSize:   int(m.GetOutcomeSize()),
		Actor:         m.GetActor(),
		Reason:        m.GetReason(),
	}
	return e, r.answer()
}

// RecordPageToProto returns the message of a page.
func RecordPageToProto(p store.RecordPage) *pb.ListRecordsResponse {
	m := &pb.ListRecordsResponse{NextPageToken: p.NextPageToken, Now: timeToProto(p.Now), Missing: p.Missing}
	for _, rec := range p.Records {
		m.Records = append(m.Records, RecordToProto(rec, p.Now))
	}
	return m
}

// RecordPageFromProto returns the page of a message, or ErrInternal.
func RecordPageFromProto(m *pb.ListRecordsResponse) (store.RecordPage, error) {
	var r reader
	p := store.RecordPage{NextPageToken: m.GetNextPageToken(), Now: r.time("now", m.GetNow()), Missing: m.GetMissing()}
	records, err := listFromProto(m.GetRecords(), RecordFromProto)
	p.Records = records
	return p, firstOf(r.answer(), err)
}

// InspectionToProto returns the message of an inspection.
func InspectionToProto(in store.Inspection) *pb.InspectRecordResponse {
	m := &pb.InspectRecordResponse{Record: RecordToProto(in.Record, in.Now), Now: timeToProto(in.Now), AttemptId: []byte(in.Record.AttemptID)}
	m.EndedAttemptIds = endedToProto(in.Record)
	for _, e := range in.Events {
		m.Events = append(m.Events, EventToProto(e))
	}
	return m
}

// InspectionFromProto returns the inspection of a message, or ErrInternal.
func InspectionFromProto(m *pb.InspectRecordResponse) (store.Inspection, error) {
	var r reader
	in := store.Inspection{Now: r.time("now", m.GetNow())}
	var recErr, eventErr error
	if in.Record, recErr = RecordFromProto(m.GetRecord()); recErr == nil {
		recErr = nameAttempts(in.Record, m.GetAttemptId(), m.GetEndedAttemptIds())
	}
	in.Events, eventErr = listFromProto(m.GetEvents(), EventFromProto)
	return in, firstOf(r.answer(), recErr, eventErr)
}

// listFromProto turns every message of a list, up to the first that fails.
func listFromProto[M, S any](list []M, from func(M) (S, error)) ([]S, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := make([]S, len(list))
	for i, m := range list {
		var err error
		if out[i], err = from(m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
