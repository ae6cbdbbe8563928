package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// scripted is a server whose sessions do what a test says. Its calls succeed.
type scripted struct {
	pb.UnimplementedIdempotencyServiceServer
	session func(pb.IdempotencyService_SessionServer) error // nil: there are none

	mu       sync.Mutex
	calls    int
	attempts map[string]int // of Claims, by calls and in sessions
	opened   int            // sessions
}

func (s *scripted) Claim(_ context.Context, m *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	s.count(m)
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	return granted(m), nil
}

func granted(m *pb.ClaimRequest) *pb.ClaimResponse {
	fence := int64(7)
	if m.GetKey().GetId() == "" {
		fence = 0
	}
	return &pb.ClaimResponse{Result: &pb.ClaimResponse_Granted{Granted: &pb.Granted{
		Fence: fence, AttemptNumber: 1, LeaseRemaining: durationpb.New(30 * time.Second),
	}}}
}

func (s *scripted) count(m *pb.ClaimRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[string(m.GetAttemptId())]++
}

// Complete answers at once.
func (s *scripted) Complete(context.Context, *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return &pb.CompleteResponse{}, nil
}

func (s *scripted) Session(stream pb.IdempotencyService_SessionServer) error {
	s.mu.Lock()
	s.opened++
	s.mu.Unlock()
	if s.session == nil {
		return s.UnimplementedIdempotencyServiceServer.Session(stream)
	}
	return s.session(stream)
}

// was returns how many calls and sessions there were since it was asked last.
func (s *scripted) was() (calls, opened int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, opened = s.calls, s.opened
	s.calls, s.opened = 0, 0
	return calls, opened
}

// accepts sends the headers.
func accepts(stream pb.IdempotencyService_SessionServer) error {
	return stream.SendHeader(metadata.MD{})
}

// grants answers every Claim of a session at once.
func (s *scripted) grants(stream pb.IdempotencyService_SessionServer) error {
	if err := accepts(stream); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&pb.SessionResponse{Answers: s.answers(m)}); err != nil {
			return err
		}
	}
}

func (s *scripted) answers(m *pb.SessionRequest) (answers []*pb.SessionAnswer) {
	for _, o := range m.GetOperations() {
		s.count(o.GetClaim())
		answers = append(answers, &pb.SessionAnswer{Id: o.GetId(), Result: &pb.SessionAnswer_Claim{Claim: granted(o.GetClaim())}})
	}
	return answers
}

// sessionRig is a client of a scripted server.
type sessionRig struct {
	*testing.T
	*scripted
	client *Client
	server *grpc.Server
	number int
}

// scriptedly runs a test in a bubble.
func scriptedly(t *testing.T, session func(*scripted) func(pb.IdempotencyService_SessionServer) error, test func(*sessionRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &sessionRig{T: t, scripted: &scripted{attempts: map[string]int{}}, server: grpc.NewServer(
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}))} // as idemd's has it
		if session != nil {
			r.session = session(r.scripted)
		}
		pb.RegisterIdempotencyServiceServer(r.server, r)
		lis := bufconn.Listen(1 << 20)
		go func() { _ = r.server.Serve(lis) }()
		defer r.server.Stop()
		var err error
		r.client, err = Dial("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer r.client.Close()
		test(r)
	})
}

func (r *sessionRig) claim(ctx context.Context) error {
	r.mu.Lock()
	r.number++
	attempt := fmt.Sprint("attempt-", r.number)
	r.mu.Unlock()
	_, err := r.client.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: attempt})
	return err
}

// opens has a session opened, if that is not to wait.
func (r *sessionRig) opens() {
	r.client.keys.sessions.get(true)
	synctest.Wait()
	r.was()
}

// claims makes one claim and checks by what it went.
func (r *sessionRig) claims(calls int) {
	r.Helper()
	if err := r.claim(r.Context()); err != nil {
		r.Fatal(err)
	}
	if got, _ := r.was(); got != calls {
		r.Errorf("%d calls, want %d", got, calls)
	}
}

func granting(s *scripted) func(pb.IdempotencyService_SessionServer) error { return s.grants }

func TestWhatGoesByASession(t *testing.T) {
	scriptedly(t, granting, func(r *sessionRig) {
		r.opens()
		r.claims(0)
		ctx := metadata.AppendToOutgoingContext(r.Context(), "authorization", "Bearer x")
		large := &store.Outcome{Body: make([]byte, maxSharing+1)}
		for name, err := range map[string]error{
			"metadata": r.claim(ctx),
			"a wait":   second(r.client.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "w", Wait: time.Second})),
			"large":    second(r.client.Complete(r.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: 1, Outcome: large})),
		} {
			if err != nil {
				r.Errorf("%s: %v", name, err)
			}
		}
		if calls, opened := r.was(); calls != 3 || opened != 0 {
			r.Errorf("%d calls and %d sessions", calls, opened)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// For what is asked now and then no session is opened.
func TestRareOperationsAreCalls(t *testing.T) {
	scriptedly(t, granting, func(r *sessionRig) {
		for range 5 {
			r.claims(1)
			time.Sleep(opensWithin)
		}
		if _, opened := r.was(); opened != 0 {
			r.Errorf("%d sessions were opened", opened)
		}
		r.opens()
		time.Sleep(opensWithin)
		r.claims(0)
	})
}

// A connection that cannot stream has calls.
func TestConnectionThatCannotStream(t *testing.T) {
	cc := &fakeConn{err: status.Error(codes.InvalidArgument, "sent")} // one that panics
	c := New(cc)
	for range 3 {
		if _, err := c.Lookup(t.Context(), store.LookupRequest{Key: key}); !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("got %v", err)
		}
	}
	c.keys.sessions.running.Wait()
	if s := c.keys.sessions; time.Until(s.notUntil) < unservedPause/2 || s.failures != 1 || len(cc.called) != 3 {
		t.Errorf("%d failures; called %v", s.failures, cc.called)
	}
}

// A server that has no sessions is asked once in a while.
func TestServerWithoutSessions(t *testing.T) {
	scriptedly(t, nil, func(r *sessionRig) {
		for range 5 {
			if err := r.claim(r.Context()); err != nil {
				r.Fatal(err)
			}
			time.Sleep(opensWithin - 1)
		}
		if calls, opened := r.was(); calls != 5 || opened != 1 {
			r.Errorf("%d calls, and %d sessions were tried", calls, opened)
		}
		time.Sleep(unservedPause)
		if r.opens(); r.client.keys.sessions.failures != 2 {
			r.Errorf("tried %d times", r.client.keys.sessions.failures)
		}
	})
}

// A session that breaks off costs nobody more than a call that does: it is sent again, under
// the same attempt id. A server where they always do is left alone, more and more.
func TestSessionsBreakOff(t *testing.T) {
	for name, session := range map[string]func(*scripted) func(pb.IdempotencyService_SessionServer) error{
		"before it is accepted": func(*scripted) func(pb.IdempotencyService_SessionServer) error {
			return func(pb.IdempotencyService_SessionServer) error { return status.Error(codes.Unavailable, "no") }
		},
		"once accepted": func(*scripted) func(pb.IdempotencyService_SessionServer) error {
			return func(stream pb.IdempotencyService_SessionServer) error {
				return errors.Join(accepts(stream), status.Error(codes.Internal, "no"))
			}
		},
		"with an operation": func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
			return func(stream pb.IdempotencyService_SessionServer) error {
				_ = accepts(stream)
				m, _ := stream.Recv()
				s.answers(m)
				return status.Error(codes.PermissionDenied, "no")
			}
		},
		"without an answer": func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
			return func(stream pb.IdempotencyService_SessionServer) error {
				_ = accepts(stream)
				m, _ := stream.Recv()
				s.answers(m)
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scriptedly(t, session, func(r *sessionRig) {
				for range 600 {
					if err := r.claim(r.Context()); err != nil {
						r.Fatal(err)
					}
					time.Sleep(opensWithin - 1)
				}
				again := 0
				for attempt, n := range r.attempts {
					if n > 2 {
						r.Errorf("%s was sent %d times", attempt, n)
					}
					again += n - 1
				}
				_, opened := r.was()
				if opened < 10 || opened > 40 || again > opened {
					r.Errorf("%d sessions were opened in 10 minutes, %d operations sent again", opened, again)
				}
			})
		})
	}
}

// All that is in flight when a session breaks is sent again only within the budget (L5).
func TestRetriesOfASessionAreBudgeted(t *testing.T) {
	held := func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			for got := 0; got < 100; {
				m, err := stream.Recv()
				if err != nil {
					return err
				}
				got += len(s.answers(m))
			}
			return status.Error(codes.Unavailable, "killed")
		}
	}
	scriptedly(t, held, func(r *sessionRig) {
		r.opens()
		var all sync.WaitGroup
		var mu sync.Mutex
		failed := 0
		for range 100 {
			all.Go(func() {
				err := r.claim(r.Context())
				if err != nil && !errors.Is(err, store.ErrUnavailable) {
					r.Error(err)
				}
				if err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		calls, _ := r.was()
		if calls > retryReserve || calls+failed != 100 {
			r.Errorf("%d were sent again, %d failed", calls, failed)
		}
	})
}

// A caller whose context ends returns at once, whatever the server does with its operation.
func TestCallersLeaveASession(t *testing.T) {
	var cancelled []uint64
	silent := func(*scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			for {
				m, err := stream.Recv()
				if err != nil {
					return nil
				}
				cancelled = append(cancelled, m.GetCancelled()...)
			}
		}
	}
	scriptedly(t, silent, func(r *sessionRig) {
		r.opens()
		start := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if err := r.claim(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			r.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel = context.WithCancel(r.Context())
		time.AfterFunc(time.Second, cancel)
		if err := r.claim(ctx); !errors.Is(err, context.Canceled) || time.Since(start) != 2*time.Second {
			r.Errorf("after %v: %v", time.Since(start), err)
		}
		synctest.Wait()
		if len(cancelled) != 2 {
			r.Errorf("the server is told of %v", cancelled)
		}
		// One that is never answered keeps nothing once its caller has left.
		time.Sleep(2 * sessionLife)
		if r.client.keys.sessions.current.Load() != nil {
			r.Error("the session is used for ever")
		}
	})
}

// The same where the server does not even read: no caller waits for the stream.
func TestCallersLeaveAStuckSession(t *testing.T) {
	stuck := func(*scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			<-stream.Context().Done()
			return nil
		}
	}
	scriptedly(t, stuck, func(r *sessionRig) {
		r.opens()
		start := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for i := range 2 * maxOpen {
			all.Go(func() {
				outcome := &store.Outcome{Body: make([]byte, maxSharing-100)}
				_, err := r.client.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: fmt.Sprint(i), Fence: 1, Outcome: outcome})
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					r.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took != time.Second {
			r.Errorf("took %v", took)
		}
		if calls, _ := r.was(); calls != maxOpen {
			r.Errorf("%d calls for what a session has no room for", calls)
		}
	})
}

// A session is replaced every minute, and when the server asks for it; what is in flight in the
// old one is answered there.
func TestSessionsAreReplaced(t *testing.T) {
	for _, asked := range []bool{false, true} {
		halfClosed := make(map[int]bool)
		var n int
		answerLast := func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
			return func(stream pb.IdempotencyService_SessionServer) error {
				_ = accepts(stream)
				n++
				me := n
				var answers []*pb.SessionAnswer
				for {
					m, err := stream.Recv()
					if err != nil {
						halfClosed[me] = errors.Is(err, io.EOF)
						return stream.Send(&pb.SessionResponse{Answers: answers})
					}
					answers = append(answers, s.answers(m)...)
					if asked {
						if err := stream.Send(&pb.SessionResponse{Closing: true}); err != nil {
							return err
						}
					}
				}
			}
		}
		scriptedly(t, answerLast, func(r *sessionRig) {
			r.opens()
			for i := range 3 {
				start := time.Now()
				r.claims(0)
				took := time.Since(start)
				if asked && took != 0 || !asked && (took < sessionLife/2 || took > sessionLife*3/2) {
					r.Errorf("asked for: %v; answered after %v", asked, took)
				}
				synctest.Wait()
				if !halfClosed[i+1] {
					r.Errorf("session %d is not half-closed", i+1)
				}
				r.opens()
			}
		})
	}
}

// Answers that are none are no answers.
func TestAnswersInASessionThatAreNotUnderstood(t *testing.T) {
	for name, answer := range map[string]*pb.SessionAnswer{
		"nothing":         {},
		"another's":       {Result: &pb.SessionAnswer_Complete{Complete: &pb.CompleteResponse{}}},
		"an empty one":    {Result: &pb.SessionAnswer_Claim{Claim: &pb.ClaimResponse{}}},
		"OK":              {Result: &pb.SessionAnswer_Status{}},
		"not a status":    {Result: &pb.SessionAnswer_Status{Status: []byte{0xff}}},
		"to another call": nil,
	} {
		odd := func(*scripted) func(pb.IdempotencyService_SessionServer) error {
			return func(stream pb.IdempotencyService_SessionServer) error {
				_ = accepts(stream)
				for {
					m, err := stream.Recv()
					if err != nil {
						return nil
					}
					for _, o := range m.GetOperations() {
						if answer == nil {
							answer = &pb.SessionAnswer{Id: 1 << 40, Result: &pb.SessionAnswer_Claim{Claim: granted(o.GetClaim())}}
						} else {
							answer.Id = o.GetId()
						}
						if err := stream.Send(&pb.SessionResponse{Answers: []*pb.SessionAnswer{answer}}); err != nil {
							return err
						}
					}
				}
			}
		}
		scriptedly(t, odd, func(r *sessionRig) {
			r.opens()
			ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), sendOnceKey{}, true), time.Second)
			defer cancel()
			got, err := r.client.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "a"})
			want := store.ErrInternal
			if name == "to another call" {
				want = context.DeadlineExceeded
			}
			if !errors.Is(err, want) || got != (store.ClaimAnswer{}) {
				r.Errorf("%s: %+v, %v", name, got, err)
			}
		})
	}
}

// Close lets what is in flight end, where the connection is the caller's.
func TestCloseEndsTheSession(t *testing.T) {
	slow := func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			for {
				m, err := stream.Recv()
				if err != nil {
					return nil
				}
				time.Sleep(time.Second)
				if err := stream.Send(&pb.SessionResponse{Answers: s.answers(m)}); err != nil {
					return err
				}
			}
		}
	}
	scriptedly(t, slow, func(r *sessionRig) {
		r.opens()
		conn := r.client.conn
		r.client.conn = nil // as if it were the caller's
		start := time.Now()
		closed := make(chan error, 1)
		time.AfterFunc(time.Second/2, func() { closed <- r.client.Close() })
		r.claims(0)
		if err := <-closed; err != nil {
			r.Error(err)
		}
		r.client.keys.sessions.running.Wait()
		if took := time.Since(start); took != time.Second {
			r.Errorf("ended after %v", took)
		}
		r.claims(1) // by a call
		if _, opened := r.was(); opened != 0 {
			r.Error("another session is opened after Close")
		}
		r.client.conn = conn
	})
}
