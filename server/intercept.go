package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// calls is what every call goes through: a panic becomes INTERNAL, an error of the store
// becomes a status, and what is worth it is logged.
//
// The log holds no outcome, no attempt id and no key: keys and attempts are named by the first
// bytes of their digests, which an operator is shown too. It does not hold the text of a refusal either, which may quote the caller.
// Nothing is prepared for a line that is not written: calls that were answered are logged
// at debug, refusals and grants of a key after a lapse at info, and what an operator should look at at warn and error. While
// the store is away every call is refused, and so may be those of somebody who is not known:
// of those one line a second for each method and code is written.
type calls struct {
	logger   *slog.Logger
	metrics  *Metrics
	identity *identity.Authority // nil: nobody is told apart, and everything allowed
	draining <-chan struct{}     // closed when the drain begins
	often    quiet               // lines that many calls may cause
}

func (c *calls) options() []grpc.ServerOption {
	recovered := recovery.WithRecoveryHandlerContext(c.panicked)
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.UnaryInterceptor(c.interceptor()),
		grpc.ChainStreamInterceptor(c.stream, recovery.StreamServerInterceptor(recovered)),
	}
}

// interceptor is what a call goes through, and an operation of a session too: all that
// concerns calls belongs in here, or a session would be a way around it.
func (c *calls) interceptor() grpc.UnaryServerInterceptor {
	recovered := recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(c.panicked))
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return c.unary(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return recovered(ctx, req, info, handler)
		})
	}
}

func (c *calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := c.admit(ctx, info.FullMethod, req)
	if err != nil {
		return nil, c.notAdmitted(ctx, req, info.FullMethod, err)
	}
	resp, err := handler(ctx, req)
	if err == nil {
		c.answered(ctx, req, resp, info.FullMethod)
		return resp, nil
	}
	st := statusOf(err)
	c.refused(ctx, req, info.FullMethod, st, err)
	return nil, st.Err()
}

func (c *calls) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ss, err := c.admitStream(ss, info.FullMethod)
	if err != nil {
		return c.notAdmitted(ss.Context(), nil, info.FullMethod, err)
	}
	if info.IsClientStream && info.FullMethod != pb.IdempotencyService_Session_FullMethodName {
		handler = c.untilDrain(handler)
	}
	if err := handler(srv, ss); err != nil {
		return statusOf(err).Err()
	}
	return nil
}

func (c *calls) notAdmitted(ctx context.Context, req any, method string, err error) error {
	return c.notCarriedOut(ctx, operationOf(path.Base(method)), req, method, err)
}

// notCarriedOut counts, logs and returns the refusal of a call that did not come so far as to be
// carried out.
func (c *calls) notCarriedOut(ctx context.Context, op operation, req any, method string, err error) error {
	if op < operations { // what is not about keys or for operators is not counted
		c.metrics.refused(op, "", err)
	}
	st := statusOf(err)
	c.refused(ctx, req, method, st, err)
	return st.Err()
}

// untilDrain ends a stream when the drain begins: one that is read from, like reflection's,
// stays open for as long as its caller likes. The handler ends right after, because nothing
// can be read from or written to a stream that has ended. A watch of health, which is not
// read from, ends by itself, after it has said NOT_SERVING, and so does a session.
func (c *calls) untilDrain(handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		ended := make(chan error, 1)
		go func() { ended <- handler(srv, ss) }()
		select {
		case err := <-ended:
			return err
		case <-c.draining:
			return errDraining
		}
	}
}

// errDraining is how streams end that the drain ends.
var errDraining = status.Error(codes.Unavailable, "draining")

// statusOf is the status of a handler's error. The health and reflection services make
// statuses themselves. A store's error may wrap one, of a call to elsewhere: that is not
// its own.
func statusOf(err error) *status.Status {
	if own, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return own.GRPCStatus()
	}
	return storepb.ToStatus(err)
}

// ownStatus reports whether a handler's error is a status that it made itself, and no store's.
func ownStatus(err error) bool {
	_, own := err.(interface{ GRPCStatus() *status.Status })
	return own
}

// panicked turns a panic into an error that says nothing to the caller.
func (c *calls) panicked(ctx context.Context, p any) error {
	c.metrics.panics.Inc()
	method, _ := grpc.Method(ctx)
	c.logger.LogAttrs(ctx, slog.LevelError, "call panicked",
		slog.String("method", method), slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
	return &store.Error{Sentinel: store.ErrInternal, Cause: errors.New("the call panicked")}
}

// answered logs what operators do, and grants after which an effect may be there twice. All else
// it logs at debug.
func (c *calls) answered(ctx context.Context, req, resp any, method string) {
	level, message := slog.LevelDebug, "call answered"
	claimed, _ := resp.(*pb.ClaimResponse)
	switch {
	case isOperators(req):
		level, message = slog.LevelInfo, "operator acted"
	case claimed.GetGranted().GetUnsettled():
		level, message = slog.LevelInfo, "key taken over"
	}
	if !c.logger.Enabled(ctx, level) {
		return
	}
	attrs := about(ctx, req, method)
	if claimed != nil {
		attrs = append(attrs, told(claimed)...)
	}
	if of, ok := req.(interface{ GetNamespace() *pb.Namespace }); ok { // answered, so its name is a valid one
		attrs = append(attrs, slog.String("namespace", of.GetNamespace().GetName()))
	}
	if by, ok := req.(interface{ GetActor() string }); ok {
		attrs = append(attrs, slog.String("actor", by.GetActor()))
	}
	c.logger.LogAttrs(ctx, level, message, attrs...)
}

// isOperators reports whether the request changes something in an operator's name.
func isOperators(req any) bool {
	switch req.(type) {
	case *pb.ResolveRequest, *pb.ForceReleaseRequest, *pb.ImportOutcomeRequest, *pb.CreateNamespaceRequest, *pb.UpdateNamespaceRequest,
		*pb.BackupRequest, *pb.BeginRecoveryRequest, *pb.LiftRecoveryRequest, *pb.AcceptStoreRequest:
		return true
	}
	return false
}

func (c *calls) refused(ctx context.Context, req any, method string, st *status.Status, err error) {
	level := levelOf(st.Code())
	if method == pb.IdempotencyService_GetTopology_FullMethodName && st.Code() == codes.Unimplemented {
		level = slog.LevelDebug // whether there are regions is asked by commands for their own sake
	}
	if !c.logger.Enabled(ctx, level) {
		return
	}
	held := 0
	if kind, limited := c.kindOf(ctx, method, st.Code()); limited {
		var ok bool
		if held, ok = c.often.pass(kind, time.Now()); !ok {
			return
		}
	}
	attrs := append(about(ctx, req, method), slog.String("code", rpccode.Code(st.Code()).String()))
	if !ownStatus(err) {
		attrs = append(attrs, slog.String("reason", storepb.ReasonName(storepb.Reason(err))))
	}
	if cause := causeOf(err); cause != nil {
		attrs = append(attrs, slog.String("cause", cause.Error()))
	}
	if held > 0 {
		attrs = append(attrs, slog.Int("more_not_logged", held))
	}
	c.logger.LogAttrs(ctx, level, "call refused", attrs...)
}

// kindOf says of which kind of line a refusal is, and whether of that kind only so many are written:
// those that many calls may cause of which it is not known who makes them, or who has no hand in it.
func (c *calls) kindOf(ctx context.Context, method string, code codes.Code) (kind string, limited bool) {
	if _, served := rules[method]; !served && method != getMetrics {
		return code.String() + " unknown", true // there are any number of them
	}
	limited = code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Unauthenticated || c.identity.Identifies() && principalOf(ctx) == ""
	return code.String() + " " + method, limited
}

func levelOf(code codes.Code) slog.Level {
	switch code {
	case codes.Internal, codes.DataLoss, codes.Unknown:
		return slog.LevelError
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return slog.LevelWarn
	case codes.Canceled:
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

// causeOf is what is known of an error and not said to the caller.
func causeOf(err error) error {
	var refused *store.Error
	if errors.As(err, &refused) {
		return refused.Cause
	}
	if !ownStatus(err) && storepb.Reason(err) == pb.ErrorReason_ERROR_REASON_INTERNAL {
		return err
	}
	return nil
}

// maxMethodBytes is how much of a method's name is logged: anybody may ask for one of any length.
const maxMethodBytes = 100

// about says which call a line is about.
func about(ctx context.Context, req any, method string) []slog.Attr {
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("method", method[:min(len(method), maxMethodBytes)]), slog.Duration("duration", heldUntil(ctx, time.Now())))
	if principal, ok := identity.FromContext(ctx); ok {
		attrs = append(attrs, slog.String("principal", string(principal)))
	}
	key := keyOf(req)
	if key.Validate() != nil { // none, or one whose parts may be anything
		return attrs
	}
	attrs = append(attrs, slog.String("namespace", key.Namespace), slog.String("key", key.LogName()))
	if by, ok := req.(interface{ GetAttemptId() []byte }); ok && len(by.GetAttemptId()) <= store.MaxAttemptIDBytes {
		attrs = append(attrs, slog.String("attempt", store.AttemptLogName(string(by.GetAttemptId()))))
	}
	return attrs
}

// told says what a Claim was answered. The fence of a grant is in the key's record, too.
func told(answer *pb.ClaimResponse) []slog.Attr {
	switch result := answer.GetResult().(type) {
	case *pb.ClaimResponse_Granted:
		return []slog.Attr{slog.String("answer", "granted"), slog.Int64("fence", result.Granted.GetFence())}
	case *pb.ClaimResponse_InProgress:
		return []slog.Attr{slog.String("answer", "in_progress")}
	case *pb.ClaimResponse_Completed:
		return []slog.Attr{slog.String("answer", "completed")}
	}
	return []slog.Attr{slog.String("answer", "unresolved")}
}
