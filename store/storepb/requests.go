package storepb

import (
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// ClaimRequestToProto returns the message of a request.
func ClaimRequestToProto(r store.ClaimRequest) *pb.ClaimRequest {
	return &pb.ClaimRequest{
		Key:         KeyToProto(r.Key),
		AttemptId:   []byte(r.AttemptID),
		Fingerprint: FingerprintToProto(r.Fingerprint),
		Lease:       durationToProto(r.Lease),
		Hold:        r.Hold,
		IntentTime:  timeToProto(r.IntentTime),
		Wait:        durationToProto(r.Wait),
	}
}

// ClaimRequestFromProto returns the request of a message, or ErrInvalidArgument.
func ClaimRequestFromProto(m *pb.ClaimRequest) (store.ClaimRequest, error) {
	var r reader
	req := store.ClaimRequest{
		Key:         KeyFromProto(m.GetKey()),
		AttemptID:   string(m.GetAttemptId()),
		Fingerprint: FingerprintFromProto(m.GetFingerprint()),
		Lease:       r.duration("lease", m.GetLease()),
		Hold:        m.GetHold(),
		IntentTime:  r.time("intent time", m.GetIntentTime()),
		Wait:        r.duration("wait", m.GetWait()),
	}
	return req, r.err
}

// RenewRequestToProto returns the message of a request.
func RenewRequestToProto(r store.RenewRequest) *pb.RenewRequest {
	return &pb.RenewRequest{
		Key:       KeyToProto(r.Key),
		AttemptId: []byte(r.AttemptID),
		Fence:     r.Fence,
		Lease:     durationToProto(r.Lease),
	}
}

// RenewRequestFromProto returns the request of a message, or ErrInvalidArgument.
func RenewRequestFromProto(m *pb.RenewRequest) (store.RenewRequest, error) {
	var r reader
	req := store.RenewRequest{
		Key:       KeyFromProto(m.GetKey()),
		AttemptID: string(m.GetAttemptId()),
		Fence:     m.GetFence(),
		Lease:     r.duration("lease", m.GetLease()),
	}
	return req, r.err
}

// CompleteRequestToProto returns the message of a request.
func CompleteRequestToProto(r store.CompleteRequest) *pb.CompleteRequest {
	return &pb.CompleteRequest{
		Key:       KeyToProto(r.Key),
		AttemptId: []byte(r.AttemptID),
		Fence:     r.Fence,
		Outcome:   OutcomeToProto(r.Outcome),
	}
}

// CompleteRequestFromProto returns the request of a message. It cannot fail.
func CompleteRequestFromProto(m *pb.CompleteRequest) (store.CompleteRequest, error) {
	return store.CompleteRequest{
		Key:       KeyFromProto(m.GetKey()),
		AttemptID: string(m.GetAttemptId()),
		Fence:     m.GetFence(),
		Outcome:   OutcomeFromProto(m.GetOutcome()),
	}, nil
}

// ReleaseRequestToProto returns the message of a request.
func ReleaseRequestToProto(r store.ReleaseRequest) *pb.ReleaseRequest {
	return &pb.ReleaseRequest{
		Key:       KeyToProto(r.Key),
		AttemptId: []byte(r.AttemptID),
		Fence:     r.Fence,
		Effect:    pb.Effect(r.Effect),
	}
}

// ReleaseRequestFromProto returns the request of a message, or ErrInvalidArgument.
func ReleaseRequestFromProto(m *pb.ReleaseRequest) (store.ReleaseRequest, error) {
	var r reader
	req := store.ReleaseRequest{
		Key:       KeyFromProto(m.GetKey()),
		AttemptID: string(m.GetAttemptId()),
		Fence:     m.GetFence(),
		Effect:    enum(&r, "effect", m.GetEffect(), store.EffectUnknown),
	}
	return req, r.err
}

// LookupRequestToProto returns the message of a request.
func LookupRequestToProto(r store.LookupRequest) *pb.LookupRequest {
	return &pb.LookupRequest{Key: KeyToProto(r.Key), Fingerprint: FingerprintToProto(r.Fingerprint)}
}

// LookupRequestFromProto returns the request of a message. It cannot fail.
func LookupRequestFromProto(m *pb.LookupRequest) (store.LookupRequest, error) {
	return store.LookupRequest{
		Key:         KeyFromProto(m.GetKey()),
		Fingerprint: FingerprintFromProto(m.GetFingerprint()),
	}, nil
}
