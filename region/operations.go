package region

import (
	"context"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// operation is how an operation on a key is sent to the key's home, and what that makes of it.
type operation[R, A any] struct {
	method   string // that its caller must be allowed
	grants   bool   // it may begin an attempt
	validate func(R) error
	key      func(R) store.Key
	by       func(R, int64) R // with the epoch
	perform  func(store.Backend, context.Context, R) (A, error)
	told     func(A, store.Served) A // nil: the answer does not say who answered

	// after is the request, and answered its answer, where others have kept it waiting for so
	// long before; nil where nothing waits.
	after    func(R, time.Duration) R
	answered func(A, time.Duration) A

	write  func(*pb.ForwardRequest, R)
	answer func(*pb.ForwardResponse) (A, error)
}

var claiming = &operation[store.ClaimRequest, store.ClaimAnswer]{
	method:   pb.IdempotencyService_Claim_FullMethodName,
	grants:   true,
	validate: func(r store.ClaimRequest) error { return r.Validate() },
	key:      func(r store.ClaimRequest) store.Key { return r.Key },
	by:       func(r store.ClaimRequest, epoch int64) store.ClaimRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.Claim,
	told:     func(a store.ClaimAnswer, s store.Served) store.ClaimAnswer { a.Served = s; return a },
	after: func(r store.ClaimRequest, waited time.Duration) store.ClaimRequest {
		r.Wait = max(r.Wait-waited, 0)
		return r
	},
	answered: store.ClaimAnswer.HeldLonger,
	write: func(m *pb.ForwardRequest, r store.ClaimRequest) {
		m.Operation = &pb.ForwardRequest_Claim{Claim: storepb.ClaimRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.ClaimAnswer, error) {
		return storepb.ClaimAnswerFromProto(m.GetClaim())
	},
}

var renewing = &operation[store.RenewRequest, store.RenewAnswer]{
	method:   pb.IdempotencyService_Renew_FullMethodName,
	validate: func(r store.RenewRequest) error { return r.Validate() },
	key:      func(r store.RenewRequest) store.Key { return r.Key },
	by:       func(r store.RenewRequest, epoch int64) store.RenewRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.Renew,
	told:     func(a store.RenewAnswer, s store.Served) store.RenewAnswer { a.Served = s; return a },
	write: func(m *pb.ForwardRequest, r store.RenewRequest) {
		m.Operation = &pb.ForwardRequest_Renew{Renew: storepb.RenewRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.RenewAnswer, error) {
		return answered(m.GetRenew(), storepb.RenewAnswerFromProto)
	},
}

var completing = &operation[store.CompleteRequest, store.CompleteAnswer]{
	method:   pb.IdempotencyService_Complete_FullMethodName,
	validate: func(r store.CompleteRequest) error { return r.Validate() },
	key:      func(r store.CompleteRequest) store.Key { return r.Key },
	by:       func(r store.CompleteRequest, epoch int64) store.CompleteRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.Complete,
	told:     func(a store.CompleteAnswer, s store.Served) store.CompleteAnswer { a.Served = s; return a },
	write: func(m *pb.ForwardRequest, r store.CompleteRequest) {
		m.Operation = &pb.ForwardRequest_Complete{Complete: storepb.CompleteRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.CompleteAnswer, error) {
		return answered(m.GetComplete(), storepb.CompleteAnswerFromProto)
	},
}

var releasing = &operation[store.ReleaseRequest, store.ReleaseAnswer]{
	method:   pb.IdempotencyService_Release_FullMethodName,
	validate: func(r store.ReleaseRequest) error { return r.Validate() },
	key:      func(r store.ReleaseRequest) store.Key { return r.Key },
	by:       func(r store.ReleaseRequest, epoch int64) store.ReleaseRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.Release,
	told:     func(a store.ReleaseAnswer, s store.Served) store.ReleaseAnswer { a.Served = s; return a },
	write: func(m *pb.ForwardRequest, r store.ReleaseRequest) {
		m.Operation = &pb.ForwardRequest_Release{Release: storepb.ReleaseRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.ReleaseAnswer, error) {
		return answered(m.GetRelease(), storepb.ReleaseAnswerFromProto)
	},
}

var lookingUp = &operation[store.LookupRequest, store.LookupAnswer]{
	method:   pb.IdempotencyService_Lookup_FullMethodName,
	validate: func(r store.LookupRequest) error { return r.Validate() },
	key:      func(r store.LookupRequest) store.Key { return r.Key },
	by:       func(r store.LookupRequest, epoch int64) store.LookupRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.Lookup,
	told:     func(a store.LookupAnswer, s store.Served) store.LookupAnswer { a.Served = s; return a },
	write: func(m *pb.ForwardRequest, r store.LookupRequest) {
		m.Operation = &pb.ForwardRequest_Lookup{Lookup: storepb.LookupRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.LookupAnswer, error) {
		return answered(m.GetLookup(), storepb.LookupAnswerFromProto)
	},
}

// answered reads an answer that must be there.
func answered[M, A any](m *M, read func(*M) (A, error)) (answer A, err error) {
	if m == nil {
		return answer, errNoAnswer
	}
	return read(m)
}

// errNoAnswer is the error of an answer that is of another operation, or of none.
var errNoAnswer = store.Refuse(store.ErrInternal, "the home's answer is not understood; is this server older than the home's? It may have been done")
