package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

const (
	// maxSharing is how large an outcome may be to go by a session: the cost of a larger one is
	// that of its bytes, and others would wait for it.
	maxSharing = 16 << 10
	// opensWithin is how soon an operation comes after another where a session is worth opening.
	opensWithin = time.Second
)

// keyCalls are the calls of operations on keys. By a session they take less, also one after
// another: measured, half of the time and of the work of a call, and a sixth of the work if
// 64 callers share it. Calls stay: what is asked for now and then; what waits; what has a large
// outcome; and what has metadata of its caller's, which is about this call alone.
type keyCalls struct {
	calls    pb.IdempotencyServiceClient
	sessions *sessions
	made     time.Time
	last     atomic.Int64 // when an operation was asked for, since made
}

func newKeyCalls(cc grpc.ClientConnInterface) *keyCalls {
	calls := pb.NewIdempotencyServiceClient(cc)
	k := &keyCalls{calls: calls, sessions: &sessions{service: calls, within: context.Background()}, made: time.Now()}
	k.last.Store(int64(-opensWithin))
	return k
}

// Claim asks for a claim.
func (k *keyCalls) Claim(ctx context.Context, m *pb.ClaimRequest, _ ...grpc.CallOption) (*pb.ClaimResponse, error) {
	if m.GetWait() != nil {
		return k.calls.Claim(ctx, m)
	}
	return share(ctx, k, m, k.calls.Claim, (*pb.SessionAnswer).GetClaim, func() *pb.SessionOperation {
		return &pb.SessionOperation{Request: &pb.SessionOperation_Claim{Claim: m}}
	})
}

// Renew asks for a renewal.
func (k *keyCalls) Renew(ctx context.Context, m *pb.RenewRequest, _ ...grpc.CallOption) (*pb.RenewResponse, error) {
	return share(ctx, k, m, k.calls.Renew, (*pb.SessionAnswer).GetRenew, func() *pb.SessionOperation {
		return &pb.SessionOperation{Request: &pb.SessionOperation_Renew{Renew: m}}
	})
}

// Complete asks for a completion.
func (k *keyCalls) Complete(ctx context.Context, m *pb.CompleteRequest, _ ...grpc.CallOption) (*pb.CompleteResponse, error) {
	if proto.Size(m.GetOutcome()) > maxSharing {
		return k.calls.Complete(ctx, m)
	}
	return share(ctx, k, m, k.calls.Complete, (*pb.SessionAnswer).GetComplete, func() *pb.SessionOperation {
		// The caller's bytes are its own again when its context ends, maybe before this is sent.
		return &pb.SessionOperation{Request: &pb.SessionOperation_Complete{Complete: proto.CloneOf(m)}}
	})
}

// Release asks for a release.
func (k *keyCalls) Release(ctx context.Context, m *pb.ReleaseRequest, _ ...grpc.CallOption) (*pb.ReleaseResponse, error) {
	return share(ctx, k, m, k.calls.Release, (*pb.SessionAnswer).GetRelease, func() *pb.SessionOperation {
		return &pb.SessionOperation{Request: &pb.SessionOperation_Release{Release: m}}
	})
}

// Lookup asks for a lookup.
func (k *keyCalls) Lookup(ctx context.Context, m *pb.LookupRequest, _ ...grpc.CallOption) (*pb.LookupResponse, error) {
	return share(ctx, k, m, k.calls.Lookup, (*pb.SessionAnswer).GetLookup, func() *pb.SessionOperation {
		return &pb.SessionOperation{Request: &pb.SessionOperation_Lookup{Lookup: m}}
	})
}

// share asks by the session if there is one, and else by a call.
func share[Request, Response any](
	ctx context.Context, k *keyCalls, m *Request,
	call func(context.Context, *Request, ...grpc.CallOption) (*Response, error),
	response func(*pb.SessionAnswer) *Response,
	operation func() *pb.SessionOperation,
) (*Response, error) {
	if s := k.session(ctx); s != nil {
		answer, err := s.ask(ctx, operation())
		switch {
		case errors.Is(err, errNotSent):
		case isUnauthenticated(answer):
			k.sessions.retire(s)
		default:
			return responseIn(answer, err, response)
		}
	}
	return call(ctx, m)
}

// isUnauthenticated reports whether the credentials with which a session was opened do not count
// any more. Nothing was done then, and a call, and the next session, have those of now.
func isUnauthenticated(answer *pb.SessionAnswer) bool {
	if len(answer.GetStatus()) == 0 {
		return false
	}
	refused := &rpcstatus.Status{}
	err := proto.Unmarshal(answer.GetStatus(), refused)
	return err == nil && codes.Code(refused.GetCode()) == codes.Unauthenticated
}

// session returns the session to ask by; nil if there is none, or it is not for this context.
func (k *keyCalls) session(ctx context.Context) *session {
	if hasMetadata(ctx) {
		return nil
	}
	now := int64(time.Since(k.made))
	often := time.Duration(now-k.last.Swap(now)) < opensWithin
	return k.sessions.get(often)
}

func hasMetadata(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md) > 0
}

// responseIn is what a call would have returned.
func responseIn[Response any](answer *pb.SessionAnswer, err error, response func(*pb.SessionAnswer) *Response) (*Response, error) {
	if err != nil {
		return nil, err
	}
	if got := response(answer); got != nil {
		return got, nil
	}
	refused := &rpcstatus.Status{}
	if _, ok := answer.GetResult().(*pb.SessionAnswer_Status); !ok || proto.Unmarshal(answer.GetStatus(), refused) != nil {
		return nil, notUnderstood
	}
	if err := status.FromProto(refused).Err(); err != nil {
		return nil, err
	}
	return nil, notUnderstood
}

// notUnderstood must not be taken for an answer: it may have been done or not.
var notUnderstood = status.Error(codes.Internal, "the answer in the session is not one to the operation")
