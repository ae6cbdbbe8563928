package storepb

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// KeyToProto returns the message of a key.
func KeyToProto(key store.Key) *pb.Key {
	return &pb.Key{Namespace: key.Namespace, Scope: key.Scope, Id: key.ID, Entity: key.Entity}
}

// KeyFromProto returns the key of a message. No message is the zero key, which its
// Validate refuses.
func KeyFromProto(m *pb.Key) store.Key {
	return store.Key{Namespace: m.GetNamespace(), Scope: m.GetScope(), ID: m.GetId(), Entity: m.GetEntity()}
}

// FingerprintToProto returns the message of a fingerprint; nil for "no fingerprint".
func FingerprintToProto(f store.Fingerprint) *pb.Fingerprint {
	if f == (store.Fingerprint{}) {
		return nil
	}
	return &pb.Fingerprint{Version: f.Version, Digest: []byte(f.Digest)}
}

// FingerprintFromProto returns the fingerprint of a message.
func FingerprintFromProto(m *pb.Fingerprint) store.Fingerprint {
	return store.Fingerprint{Version: m.GetVersion(), Digest: string(m.GetDigest())}
}

// OutcomeToProto returns the message of an outcome; nil for nil.
func OutcomeToProto(o *store.Outcome) *pb.Outcome {
	if o == nil {
		return nil
	}
	return &pb.Outcome{
		Status:      o.Status,
		Body:        o.Body,
		BodyType:    o.BodyType,
		BodyOmitted: o.BodyOmitted,
		Header:      metadataToProto(o.Header),
		Trailer:     metadataToProto(o.Trailer),
	}
}

// OutcomeFromProto returns the outcome of a message; nil for nil.
func OutcomeFromProto(m *pb.Outcome) *store.Outcome {
	if m == nil {
		return nil
	}
	return &store.Outcome{
		Status:      m.GetStatus(),
		Body:        m.GetBody(),
		BodyType:    m.GetBodyType(),
		BodyOmitted: m.GetBodyOmitted(),
		Header:      metadataFromProto(m.GetHeader()),
		Trailer:     metadataFromProto(m.GetTrailer()),
	}
}

func metadataToProto(list []store.MetadataEntry) []*pb.MetadataEntry {
	if len(list) == 0 {
		return nil
	}
	out := make([]*pb.MetadataEntry, len(list))
	for i, e := range list {
		out[i] = &pb.MetadataEntry{Name: e.Name, Value: e.Value}
	}
	return out
}

func metadataFromProto(list []*pb.MetadataEntry) []store.MetadataEntry {
	if len(list) == 0 {
		return nil
	}
	out := make([]store.MetadataEntry, len(list))
	for i, e := range list {
		out[i] = store.MetadataEntry{Name: e.GetName(), Value: e.GetValue()}
	}
	return out
}

// timeToProto returns the message of a time; nil for the zero time.
func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// durationToProto returns the message of a duration; nil for zero.
func durationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// int32Of keeps what does not fit at the end of the range, which the receiver refuses.
func int32Of(n int) int32 {
	return int32(min(max(n, math.MinInt32), math.MaxInt32))
}

// reader turns the fields of one message into store types and keeps the first error.
type reader struct{ err error }

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(format, args...))
	}
}

// time reads a timestamp; no message is the zero time.
func (r *reader) time(field string, ts *timestamppb.Timestamp) time.Time {
	if ts == nil {
		return time.Time{}
	}
	if ts.CheckValid() != nil || ts.GetSeconds() < 0 {
		r.fail("%s is not a time between the years 1970 and 9999", field)
		return time.Time{}
	}
	return ts.AsTime().Truncate(time.Microsecond)
}

// UnsettledMessage is one that says whether a record is unsettled, and since when.
type UnsettledMessage interface {
	GetUnsettled() bool
	GetUnsettledSince() *timestamppb.Timestamp
}

// unsettledSince reads since when a record is unsettled; the zero time if it is not. A peer of an
// older release says only that it is. When the current attempt was granted would be too late, and
// how many were before is no bound on their age: so it is as long ago as can be.
func (r *reader) unsettledSince(m UnsettledMessage) time.Time {
	since := r.time("unsettled since", m.GetUnsettledSince())
	switch {
	case !m.GetUnsettled():
		return time.Time{}
	case since.IsZero():
		return store.LongAgo
	}
	return since
}

// duration reads a duration; no message is zero.
func (r *reader) duration(field string, d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	const most = math.MaxInt64 / int64(time.Second)
	if d.CheckValid() != nil || d.GetSeconds() >= most || d.GetSeconds() <= -most {
		r.fail("%s is not a duration of less than 292 years", field)
		return 0
	}
	return d.AsDuration()
}

// enum reads a value of an enum whose numbers are those of the store's type, from 0 to
// last. (A test holds the two side by side.)
func enum[S ~uint8, P ~int32](r *reader, field string, value P, last S) S {
	if value < 0 || value > P(last) {
		r.fail("%s has the value %d, which is not known here; 0 to %d are", field, value, last)
		return 0
	}
	return S(value)
}

// answer reports an answer that could not be read.
func (r *reader) answer() error {
	if r.err == nil {
		return nil
	}
	return notUnderstood(r.err)
}

func notUnderstood(cause error) error {
	return &store.Error{
		Sentinel: store.ErrInternal,
		Detail:   "the server's answer is not understood; is this client older than the server?",
		Cause:    cause,
	}
}
