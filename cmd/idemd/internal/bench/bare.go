package bench

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// bareServer answers Claim and Complete with messages as large as idemd's, and does
// nothing else.
type bareServer struct {
	idemdv1.UnimplementedIdempotencyServiceServer
	addr string
	grpc *grpc.Server

	granted, completed *idemdv1.ClaimResponse
	done               *idemdv1.CompleteResponse
	log                *syncLog                         // for the claims that ask for a sync
	next               idemdv1.IdempotencyServiceClient // if not nil, it is asked instead
}

// StartBare starts a bare server on a free port, with a file for what it is asked to sync.
func StartBare(outcomeBytes int, logFile string) (addr string, stop func(), err error) {
	log, err := newSyncLog(logFile, 16<<10)
	if err != nil {
		return "", nil, err
	}
	s, err := startBare(outcomeBytes)
	if err != nil {
		return "", nil, err
	}
	s.log = log
	return s.addr, s.stop, nil
}

// StartRelay starts a bare server on a free port that sends each claim on to another one, by a
// call: what it costs at least to forward.
func StartRelay(next string) (addr string, stop func(), err error) {
	to, err := dial(next, 1)
	if err != nil {
		return "", nil, err
	}
	s, err := startBare(0)
	if err != nil {
		to.close()
		return "", nil, err
	}
	s.next = to.ask(0, false)
	return s.addr, func() { s.stop(); to.close() }, nil
}

func startBare(outcomeBytes int, options ...grpc.ServerOption) (*bareServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := newBare(outcomeBytes)
	s.addr, s.grpc = listener.Addr().String(), grpc.NewServer(options...)
	idemdv1.RegisterIdempotencyServiceServer(s.grpc, s)
	go s.grpc.Serve(listener) //nolint:errcheck // it ends when it is stopped
	return s, nil
}

func newBare(outcomeBytes int) *bareServer {
	now, lease := timestamppb.Now(), durationpb.New(29_999_999*time.Microsecond)
	s := &bareServer{done: &idemdv1.CompleteResponse{CompletedAt: now, ExpiresAt: now}}
	s.granted = &idemdv1.ClaimResponse{Result: &idemdv1.ClaimResponse_Granted{Granted: &idemdv1.Granted{
		Fence: time.Now().UnixMicro(), AttemptNumber: 1, GrantedAt: now, LeaseExpiresAt: now,
		LeaseRemaining: lease, HeldFor: durationpb.New(time.Millisecond),
	}}}
	s.completed = &idemdv1.ClaimResponse{Result: &idemdv1.ClaimResponse_Completed{Completed: &idemdv1.Completed{
		Outcome: &idemdv1.Outcome{Body: make([]byte, outcomeBytes), BodyType: bodyType},
		Fence:   time.Now().UnixMicro(), CompletedAt: now, ExpiresAt: now, Age: lease, Retention: durationpb.New(24 * time.Hour),
	}}}
	return s
}

func (s *bareServer) stop() { s.grpc.Stop() }

// Claim answers completed to the attempts that expect it (see askCompleted), and syncs a
// write first for those that want it.
func (s *bareServer) Claim(ctx context.Context, req *idemdv1.ClaimRequest) (*idemdv1.ClaimResponse, error) {
	if s.next != nil {
		return s.next.Claim(ctx, req)
	}
	switch id := req.GetAttemptId(); {
	case len(id) > 0 && id[0] == 'w':
		return s.completed, nil
	case len(id) > 0 && id[0] == 's' && s.log != nil:
		if err := s.log.write(); err != nil {
			return nil, err
		}
	}
	return s.granted, nil
}

// Complete answers at once.
func (s *bareServer) Complete(context.Context, *idemdv1.CompleteRequest) (*idemdv1.CompleteResponse, error) {
	return s.done, nil
}
