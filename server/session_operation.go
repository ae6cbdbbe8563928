package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// sessionMethods is how many operations a session can carry: the first ones.
const sessionMethods = opLookup + 1

// sessionMethod is how the service carries out what is a call of its own elsewhere.
type sessionMethod struct {
	info   *grpc.UnaryServerInfo
	handle grpc.UnaryHandler
}

func (s *keyService) sessionMethods() (methods [sessionMethods]sessionMethod) {
	for op, m := range [sessionMethods]struct {
		name   string
		handle grpc.UnaryHandler
	}{
		opClaim:    {pb.IdempotencyService_Claim_FullMethodName, handlerOf(s.Claim)},
		opRenew:    {pb.IdempotencyService_Renew_FullMethodName, handlerOf(s.Renew)},
		opComplete: {pb.IdempotencyService_Complete_FullMethodName, handlerOf(s.Complete)},
		opRelease:  {pb.IdempotencyService_Release_FullMethodName, handlerOf(s.Release)},
		opLookup:   {pb.IdempotencyService_Lookup_FullMethodName, handlerOf(s.Lookup)},
	} {
		methods[op] = sessionMethod{&grpc.UnaryServerInfo{Server: s, FullMethod: m.name}, m.handle}
	}
	return methods
}

func handlerOf[M, R any](method func(context.Context, M) (R, error)) grpc.UnaryHandler {
	return func(ctx context.Context, req any) (any, error) { return method(ctx, req.(M)) }
}

// sessionOperation is an operation of a session.
type sessionOperation struct {
	id      uint64
	op      operation
	request any // nil: not known here
	ctx     context.Context
	cancel  context.CancelFunc
	entered bool // among the open ones; else there are too many
	quiet   bool // that there are too many was logged already
}

// answer carries an operation out like a call.
func (s *keyService) answer(o *sessionOperation) *pb.SessionAnswer {
	if o.request == nil {
		return refusalAnswer(o.id, unimplemented("the operation is not known here"))
	}
	method := &s.methods[o.op]
	handle := method.handle
	if !o.entered {
		if handle = s.tooManyOpen(o.op); o.quiet {
			_, err := handle(o.ctx, o.request)
			return refusalAnswer(o.id, storepb.ToStatus(err))
		}
	}
	response, err := s.intercept(o.ctx, o.request, method.info, handle)
	if err != nil {
		return refusalAnswer(o.id, status.Convert(err))
	}
	return responseAnswer(o.id, response)
}

// tooManyOpen refuses an operation.
func (s *keyService) tooManyOpen(op operation) grpc.UnaryHandler {
	return func(_ context.Context, req any) (any, error) {
		err := store.Refuse(store.ErrOverloaded, "the session has too many open operations; nothing was done, send it again later")
		s.metrics.refused(op, keyOf(req).Namespace, err)
		return nil, err
	}
}

// requestIn returns the request that a message holds; nil if it is not known here.
func requestIn(m *pb.SessionOperation) (operation, any) {
	switch r := m.GetRequest().(type) {
	case *pb.SessionOperation_Claim:
		return opClaim, r.Claim
	case *pb.SessionOperation_Renew:
		return opRenew, r.Renew
	case *pb.SessionOperation_Complete:
		return opComplete, r.Complete
	case *pb.SessionOperation_Release:
		return opRelease, r.Release
	case *pb.SessionOperation_Lookup:
		return opLookup, r.Lookup
	default:
		return operations, nil
	}
}

func responseAnswer(id uint64, response any) *pb.SessionAnswer {
	answer := &pb.SessionAnswer{Id: id}
	switch r := response.(type) {
	case *pb.ClaimResponse:
		answer.Result = &pb.SessionAnswer_Claim{Claim: r}
	case *pb.RenewResponse:
		answer.Result = &pb.SessionAnswer_Renew{Renew: r}
	case *pb.CompleteResponse:
		answer.Result = &pb.SessionAnswer_Complete{Complete: r}
	case *pb.ReleaseResponse:
		answer.Result = &pb.SessionAnswer_Release{Release: r}
	case *pb.LookupResponse:
		answer.Result = &pb.SessionAnswer_Lookup{Lookup: r}
	}
	return answer
}

func refusalAnswer(id uint64, st *status.Status) *pb.SessionAnswer {
	text, err := proto.Marshal(st.Proto())
	if err != nil { // its text is not UTF-8; without it the code is left
		text, _ = proto.Marshal(status.New(st.Code(), "").Proto())
	}
	return &pb.SessionAnswer{Id: id, Result: &pb.SessionAnswer_Status{Status: text}}
}

// operationContext is the context of an operation that was received at an instant, in that
// of its method.
func operationContext(method context.Context, left *durationpb.Duration, at time.Time) (context.Context, context.CancelFunc) {
	var ctx context.Context
	var cancel context.CancelFunc
	if left == nil {
		ctx, cancel = context.WithCancel(method)
	} else {
		ctx, cancel = context.WithDeadline(method, at.Add(left.AsDuration()))
	}
	return &receivedAt{ctx, at}, cancel
}

// receivedAt is a context that knows when its operation came: later than its session.
type receivedAt struct {
	context.Context
	at time.Time
}

// Value implements context.Context.
func (c *receivedAt) Value(key any) any {
	if key == (receiptKey{}) {
		return c.at
	}
	return c.Context.Value(key)
}

// methodContext is what the operations of a method run in: grpc.Method tells it, as in a
// call.
func (s *keyService) methodContext(ctx context.Context, op operation) context.Context {
	return grpc.NewContextWithServerTransportStream(ctx, operationStream(s.methods[op].info.FullMethod))
}

// operationStream is the method of an operation, which has no headers of its own.
type operationStream string

var _ grpc.ServerTransportStream = operationStream("")

var errNoHeaders = errors.New("an operation of a session has no headers and trailers")

// Method implements grpc.ServerTransportStream.
func (s operationStream) Method() string { return string(s) }

// SetHeader implements grpc.ServerTransportStream.
func (operationStream) SetHeader(metadata.MD) error { return errNoHeaders }

// SendHeader implements grpc.ServerTransportStream.
func (operationStream) SendHeader(metadata.MD) error { return errNoHeaders }

// SetTrailer implements grpc.ServerTransportStream.
func (operationStream) SetTrailer(metadata.MD) error { return errNoHeaders }
