package server

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// keyService is the IdempotencyService over a store. Its errors are the store's; the
// interceptors turn them into statuses.
type keyService struct {
	pb.UnimplementedIdempotencyServiceServer
	keys    store.Store
	metrics *Metrics
	regions Regions // nil: there are none

	// Of the operations of sessions.
	calls     *calls
	intercept grpc.UnaryServerInterceptor
	methods   [sessionMethods]sessionMethod
}

func newKeyService(keys store.Store, calls *calls) *keyService {
	s := &keyService{keys: keys, metrics: calls.metrics, calls: calls, intercept: calls.interceptor()}
	s.methods = s.sessionMethods()
	return s
}

// Claim implements the IdempotencyService.
func (s *keyService) Claim(ctx context.Context, m *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	req, err := accept(s.metrics, opClaim, m, storepb.ClaimRequestFromProto)
	if err != nil {
		return nil, err
	}
	answer, err := s.keys.Claim(ctx, req)
	return respond(answer, err, storepb.ClaimAnswerToProto)
}

// Renew implements the IdempotencyService.
func (s *keyService) Renew(ctx context.Context, m *pb.RenewRequest) (*pb.RenewResponse, error) {
	req, err := accept(s.metrics, opRenew, m, storepb.RenewRequestFromProto)
	if err != nil {
		return nil, err
	}
	answer, err := s.keys.Renew(ctx, req)
	return respond(answer, err, storepb.RenewAnswerToProto)
}

// Complete implements the IdempotencyService.
func (s *keyService) Complete(ctx context.Context, m *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	req, err := accept(s.metrics, opComplete, m, storepb.CompleteRequestFromProto)
	if err != nil {
		return nil, err
	}
	answer, err := s.keys.Complete(ctx, req)
	return respond(answer, err, storepb.CompleteAnswerToProto)
}

// Release implements the IdempotencyService.
func (s *keyService) Release(ctx context.Context, m *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	req, err := accept(s.metrics, opRelease, m, storepb.ReleaseRequestFromProto)
	if err != nil {
		return nil, err
	}
	answer, err := s.keys.Release(ctx, req)
	return respond(answer, err, storepb.ReleaseAnswerToProto)
}

// Lookup implements the IdempotencyService.
func (s *keyService) Lookup(ctx context.Context, m *pb.LookupRequest) (*pb.LookupResponse, error) {
	req, err := accept(s.metrics, opLookup, m, storepb.LookupRequestFromProto)
	if err != nil {
		return nil, err
	}
	answer, err := s.keys.Lookup(ctx, req)
	return respond(answer, err, storepb.LookupAnswerToProto)
}

// checkable is a store request that can be checked on its own.
type checkable[R any] interface {
	*R
	Validate() error
}

// accept reads and validates a message before any work is done for it.
func accept[M, R any, C checkable[R]](metrics *Metrics, op operation, m M, read func(M) (R, error)) (R, error) {
	req, err := read(m)
	if err == nil {
		err = C(&req).Validate()
	}
	if err != nil {
		metrics.refused(op, keyOf(m).Namespace, err)
	}
	return req, err
}

// respond writes the answer, unless there was an error instead.
func respond[A, P any](answer A, err error, write func(A) P) (response P, _ error) {
	if err != nil {
		return response, err
	}
	return write(answer), nil
}

// keyOf returns the key that a request message is about; the zero key if it has none.
func keyOf(message any) store.Key {
	if about, ok := message.(interface{ GetKey() *pb.Key }); ok {
		return storepb.KeyFromProto(about.GetKey())
	}
	return store.Key{}
}
