package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// rawSession is a session as a client of any language has it.
type rawSession struct {
	testing.TB
	pb.IdempotencyService_SessionClient
	answers map[uint64]*pb.SessionAnswer
	closing bool
}

func openSession(ctx context.Context, t testing.TB, conn grpc.ClientConnInterface) *rawSession {
	t.Helper()
	stream, err := pb.NewIdempotencyServiceClient(conn).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &rawSession{TB: t, IdempotencyService_SessionClient: stream, answers: map[uint64]*pb.SessionAnswer{}}
}

func (s *rawSession) send(operations ...*pb.SessionOperation) {
	s.Helper()
	if err := s.Send(&pb.SessionRequest{Operations: operations}); err != nil {
		s.Fatal(err)
	}
}

// answer returns the answer to an operation, and keeps those that come before.
func (s *rawSession) answer(id uint64) *pb.SessionAnswer {
	s.Helper()
	for s.answers[id] == nil {
		if err := s.receive(); err != nil {
			s.Fatalf("no answer to %d: %v", id, err)
		}
	}
	answer := s.answers[id]
	delete(s.answers, id)
	return answer
}

func (s *rawSession) receive() error {
	s.Helper()
	m, err := s.Recv()
	for _, answer := range m.GetAnswers() {
		if s.answers[answer.GetId()] != nil {
			s.Errorf("%d is answered twice", answer.GetId())
		}
		s.answers[answer.GetId()] = answer
	}
	s.closing = s.closing || m.GetClosing()
	return err
}

// end receives until the stream ends, and returns how.
func (s *rawSession) end() error {
	s.Helper()
	for {
		if err := s.receive(); err != nil {
			return err
		}
	}
}

// refused checks that an operation is refused.
func (s *rawSession) refused(id uint64, code codes.Code, reason string) {
	s.Helper()
	answer := s.answer(id)
	var st rpcstatus.Status
	if err := proto.Unmarshal(answer.GetStatus(), &st); err != nil {
		s.Fatal(err)
	}
	if gotCode, gotReason := reasonIn(status.ErrorProto(&st)); gotCode != code || gotReason != reason {
		s.Errorf("operation %d: got %v, want %v %s", id, answer, code, reason)
	}
}

func (s *rawSession) granted(id uint64) *pb.Granted {
	s.Helper()
	answer := s.answer(id)
	granted := answer.GetClaim().GetGranted()
	if granted == nil {
		s.Fatalf("operation %d: got %v, want a grant", id, answer)
	}
	return granted
}

func claimOf(id uint64, keyID, attempt string) *pb.SessionOperation {
	return &pb.SessionOperation{Id: id, Request: &pb.SessionOperation_Claim{Claim: &pb.ClaimRequest{
		Key: &pb.Key{Namespace: "default", Id: keyID}, AttemptId: []byte(attempt),
	}}}
}

func waitingClaim(id uint64, keyID, attempt string) *pb.SessionOperation {
	o := claimOf(id, keyID, attempt)
	o.GetClaim().Wait = durationpb.New(store.MaxWait)
	return o
}

func completeOf(id uint64, keyID, attempt string, fence int64) *pb.SessionOperation {
	return &pb.SessionOperation{Id: id, Request: &pb.SessionOperation_Complete{Complete: &pb.CompleteRequest{
		Key: &pb.Key{Namespace: "default", Id: keyID}, AttemptId: []byte(attempt), Fence: fence, Outcome: &pb.Outcome{},
	}}}
}

func lookupOf(id uint64, keyID string) *pb.SessionOperation {
	return &pb.SessionOperation{Id: id, Request: &pb.SessionOperation_Lookup{Lookup: &pb.LookupRequest{
		Key: &pb.Key{Namespace: "default", Id: keyID},
	}}}
}

func within(o *pb.SessionOperation, left time.Duration) *pb.SessionOperation {
	o.TimeLeft = durationpb.New(left)
	return o
}

// sessioned runs a test in a bubble, over a backend that does something before.
func sessioned(t *testing.T, before func(context.Context, operation) error, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var backend store.Backend = newMemory()
		if before != nil {
			backend = &hooked{backend, before}
		}
		r := newRig(t, backend)
		defer r.close()
		test(t, r)
	})
}

// An operation is counted, logged and refused as its call is.
func TestOperationsOfASessionAreLikeCalls(t *testing.T) {
	sessioned(t, func(ctx context.Context, op operation) error {
		method, _ := grpc.Method(ctx)
		if op == opRenew {
			panic("the secret of the panic")
		}
		if op <= opLookup && method != pb.IdempotencyService_ServiceDesc.ServiceName && !strings.EqualFold(method, "/idemd.v1.IdempotencyService/"+op.String()) {
			t.Errorf("%v: the method is %q", op, method)
		}
		return nil
	}, func(t *testing.T, r *rig) {
		s := openSession(t.Context(), t, r.connect())
		s.send(claimOf(1, "k", "a"))
		fence := s.granted(1).GetFence()
		s.send(
			claimOf(2, "", "a"),
			lookupOf(3, "none"),
			&pb.SessionOperation{Id: 4, Request: &pb.SessionOperation_Renew{Renew: &pb.RenewRequest{
				Key: &pb.Key{Namespace: "default", Id: "k"}, AttemptId: []byte("a"), Fence: 1,
			}}},
			&pb.SessionOperation{Id: 5},
		)
		s.refused(2, codes.InvalidArgument, "KEY_REQUIRED")
		s.refused(3, codes.NotFound, "KEY_NOT_FOUND")
		s.refused(4, codes.Internal, "INTERNAL")
		s.refused(5, codes.Unimplemented, "INVALID_ARGUMENT")
		s.send(completeOf(1, "k", "a", fence)) // an id that was answered may be used again
		if got := s.answer(1); got.GetComplete().GetCompletedAt() == nil {
			t.Errorf("completed: %v", got)
		}
		for label, want := range map[string]float64{
			"answer=granted_new,namespace=default,operation=claim":    1,
			"answer=KEY_REQUIRED,namespace=default,operation=claim":   1,
			"answer=KEY_NOT_FOUND,namespace=default,operation=lookup": 1,
			"answer=ok,namespace=default,operation=complete":          1,
		} {
			if got := r.samples("idemd_answers_total")[label]; got != want {
				t.Errorf("%s is counted %v times", label, got)
			}
		}
		if got := r.value("idemd_panics_total"); got != 1 {
			t.Errorf("%v panics", got)
		}
		for _, text := range []string{"call panicked\" method=/idemd.v1.IdempotencyService/Renew", "call refused\" method=/idemd.v1.IdempotencyService/Lookup"} {
			if !strings.Contains(r.log.String(), text) {
				t.Errorf("the log does not have %q:\n%s", text, r.log)
			}
		}
	})
}

// What an operation was held for counts from its own receipt, not from that of its session.
func TestHeldForInASession(t *testing.T) {
	sessioned(t, nil, func(t *testing.T, r *rig) {
		s := openSession(t.Context(), t, r.connect())
		time.Sleep(time.Minute)
		s.send(claimOf(1, "k", "a"))
		first := s.granted(1)
		if got := first.GetHeldFor().AsDuration(); got != 0 {
			t.Errorf("held for %v", got)
		}
		s.send(waitingClaim(2, "k", "b"))
		time.Sleep(7 * time.Second)
		s.send(&pb.SessionOperation{Id: 3, Request: &pb.SessionOperation_Release{Release: &pb.ReleaseRequest{
			Key: &pb.Key{Namespace: "default", Id: "k"}, AttemptId: []byte("a"), Fence: first.GetFence(), Effect: pb.Effect_EFFECT_NONE,
		}}})
		if got := s.granted(2).GetHeldFor().AsDuration(); got != 7*time.Second {
			t.Errorf("one that waited was held for %v", got)
		}
	})
}

func hangs(ctx context.Context, op operation) error {
	if op == opClaim {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// Each operation has its own deadline, as a call has, and holds up no other.
func TestDeadlinesInASession(t *testing.T) {
	sessioned(t, hangs, func(t *testing.T, r *rig) {
		s := openSession(t.Context(), t, r.connect())
		start := time.Now()
		s.send(claimOf(1, "k", "a"), within(claimOf(2, "k", "a"), time.Second), within(claimOf(3, "k", "a"), -1), lookupOf(4, "k"))
		s.refused(4, codes.NotFound, "KEY_NOT_FOUND")
		s.refused(3, codes.DeadlineExceeded, "")
		if took := time.Since(start); took != 0 {
			t.Errorf("those that need not wait took %v", took)
		}
		s.refused(2, codes.Unavailable, "STORE_UNAVAILABLE")
		if took := time.Since(start); took >= time.Second {
			t.Errorf("answered after %v of 1 s", took)
		}
		s.refused(1, codes.Unavailable, "STORE_UNAVAILABLE")
		if took := time.Since(start); took != maxStoreTime {
			t.Errorf("without a deadline: answered after %v", took)
		}
	})
}

func TestCancelInASession(t *testing.T) {
	sessioned(t, hangs, func(t *testing.T, r *rig) {
		s := openSession(t.Context(), t, r.connect())
		s.send(claimOf(1, "k", "a"), claimOf(2, "k", "a"))
		synctest.Wait()
		start := time.Now()
		if err := s.Send(&pb.SessionRequest{Cancelled: []uint64{2, 77}}); err != nil {
			t.Fatal(err)
		}
		s.refused(2, codes.Canceled, "")
		if took := time.Since(start); took != 0 {
			t.Errorf("cancelled after %v", took)
		}
		s.refused(1, codes.Unavailable, "STORE_UNAVAILABLE")
	})
}

// What breaks the rules of a session ends it, and what is in flight in it.
func TestBrokenSessions(t *testing.T) {
	sessioned(t, hangs, func(t *testing.T, r *rig) {
		for name, c := range map[string]struct {
			send   func(*rawSession) error
			code   codes.Code
			reason string
		}{
			"an id twice": {func(s *rawSession) error {
				return s.Send(&pb.SessionRequest{Operations: []*pb.SessionOperation{lookupOf(7, "k"), claimOf(1, "k", "b")}})
			}, codes.InvalidArgument, "INVALID_ARGUMENT"},
			"too many operations in a message": {func(s *rawSession) error {
				return s.Send(&pb.SessionRequest{Operations: make([]*pb.SessionOperation, maxOpen+1)})
			}, codes.InvalidArgument, "INVALID_ARGUMENT"},
			"no message": {func(s *rawSession) error {
				s.IdempotencyService_SessionClient = rawBytes(t, r)
				return s.SendMsg([]byte{0x0a, 0x7f, 's', '3', 'c', 'r', 'e', 't'})
			}, codes.InvalidArgument, "INVALID_ARGUMENT"},
			"too large": {func(s *rawSession) error {
				large := completeOf(2, "k", "a", 1)
				large.GetComplete().Outcome.Body = make([]byte, maxReceiveBytes)
				return s.Send(&pb.SessionRequest{Operations: []*pb.SessionOperation{large}})
			}, codes.ResourceExhausted, ""},
		} {
			start := time.Now()
			s := openSession(t.Context(), t, r.connect())
			s.send(claimOf(1, "k", "a"))
			synctest.Wait()
			if err := c.send(s); err != nil {
				t.Fatal(err)
			}
			err := s.end()
			if code, reason := reasonIn(err); code != c.code || reason != c.reason || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("%s: ended after %v", name, took)
			}
		}
		if !strings.Contains(r.log.String(), "call refused\" method=/idemd.v1.IdempotencyService/Session") {
			t.Errorf("the log says nothing of it:\n%s", r.log)
		}
	})
}

// rawBytes is a session whose messages are bytes.
func rawBytes(t *testing.T, r *rig) pb.IdempotencyService_SessionClient {
	stream, err := r.connect().NewStream(t.Context(), &pb.IdempotencyService_ServiceDesc.Streams[0],
		pb.IdempotencyService_Session_FullMethodName, grpc.ForceCodecV2(bytesOnly{}))
	if err != nil {
		t.Fatal(err)
	}
	return &grpc.GenericClientStream[pb.SessionRequest, pb.SessionResponse]{ClientStream: stream}
}

// What is too much is refused, and what is in flight goes on.
func TestOpenOperationsAreBounded(t *testing.T) {
	sessioned(t, nil, func(t *testing.T, r *rig) {
		conn := r.connect()
		s := openSession(t.Context(), t, conn)
		s.send(claimOf(0, "k", "holder"))
		fence := s.granted(0).GetFence()
		for i := range uint64(maxOpen) {
			s.send(waitingClaim(i, "k", "waiter"))
		}
		s.send(claimOf(maxOpen, "other", "a"), claimOf(maxOpen+1, "other", "a"))
		s.refused(maxOpen, codes.ResourceExhausted, "OVERLOADED")
		s.refused(maxOpen+1, codes.ResourceExhausted, "OVERLOADED")
		if got := r.samples("idemd_answers_total")["answer=OVERLOADED,namespace=default,operation=claim"]; got != 2 {
			t.Errorf("counted %v times", got)
		}
		if n := strings.Count(r.log.String(), "reason=OVERLOADED"); n != 1 {
			t.Errorf("two in one message are logged %d times", n)
		}
		grant(t, r.client(), testKey, "a") // others are not held up
		second := openSession(t.Context(), t, conn)
		second.send(completeOf(1, "k", "holder", fence))
		second.answer(1)
		for i := range uint64(maxOpen) {
			if got := s.answer(i); got.GetClaim().GetCompleted() == nil {
				t.Errorf("waiter %d: %v", i, got)
			}
		}
		s.send(claimOf(1, "other", "a"))
		s.granted(1)
	})
}

func TestSessionsAreBounded(t *testing.T) {
	sessioned(t, nil, func(t *testing.T, r *rig) {
		conn := r.connect()
		var all []*rawSession
		for range maxSessions {
			s := openSession(t.Context(), t, conn)
			s.send(lookupOf(1, "k"))
			s.answer(1)
			all = append(all, s)
		}
		err := openSession(t.Context(), t, conn).end()
		if code, reason := reasonIn(err); code != codes.ResourceExhausted || reason != "OVERLOADED" {
			t.Errorf("one too many: %v", err)
		}
		openSession(t.Context(), t, r.connect()).send(lookupOf(1, "k")) // another connection's is none of them
		if err := all[0].CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := all[0].end(); !errors.Is(err, io.EOF) {
			t.Errorf("the end of a session: %v", err)
		}
		s := openSession(t.Context(), t, conn)
		s.send(lookupOf(1, "k"))
		s.answer(1)
	})
}

// Who does not read the answers is not read from, and takes no more memory than that.
func TestSlowReader(t *testing.T) {
	var asked atomic.Int64
	memory := newMemory()
	large := &store.Outcome{Body: make([]byte, 200<<10)}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &hooked{memory, func(_ context.Context, op operation) error {
			if op == opClaim {
				asked.Add(1)
			}
			return nil
		}})
		defer r.close()
		c := r.client()
		key := store.Key{Namespace: "default", ID: "large"}
		fence := grant(t, c, key, "a")
		if _, err := c.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: large}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := openSession(ctx, t, r.connect())
		const repeats = 1000
		sent := make(chan error, 1)
		go func() {
			for i := range uint64(repeats) {
				if err := s.Send(&pb.SessionRequest{Operations: []*pb.SessionOperation{claimOf(i, "large", "b")}}); err != nil {
					sent <- err
					return
				}
			}
			sent <- s.CloseSend()
		}()
		synctest.Wait()
		if got := asked.Load(); got > 100 {
			t.Errorf("%d answers of %d bytes wait for a reader", got, large.Size())
		}
		grant(t, c, testKey, "a")
		if err := s.end(); !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
		if err := <-sent; err != nil || len(s.answers) != repeats {
			t.Errorf("%d answers to %d operations; sent: %v", len(s.answers), repeats, err)
		}
	})
}
