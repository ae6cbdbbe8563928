package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

func entered(s *session, operation *pb.SessionOperation) *asked {
	a := &asked{operation: operation, done: make(chan struct{})}
	s.enter(a)
	return a
}

func completing(outcome *pb.Outcome) *pb.SessionOperation {
	return &pb.SessionOperation{Request: &pb.SessionOperation_Complete{Complete: &pb.CompleteRequest{Outcome: outcome}}}
}

// A large operation is sent though one before it was abandoned.
func TestLargeAfterAnAbandonedOperation(t *testing.T) {
	s := newSession(nil, func() {})
	s.leave(entered(s, &pb.SessionOperation{}), false)
	large := entered(s, completing(&pb.Outcome{Body: make([]byte, maxMessage)}))
	if m := s.take(); len(m.GetOperations()) != 1 || m.GetOperations()[0] != large.operation {
		t.Errorf("taken: %d operations", len(m.GetOperations()))
	}
	if m := s.take(); m != nil {
		t.Errorf("then: %v", m)
	}
}

// gRPC may look at a message after it was sent.
func TestSentMessagesAreNotChanged(t *testing.T) {
	s := newSession(nil, func() {})
	a := entered(s, &pb.SessionOperation{})
	first := s.take()
	s.leave(a, false)
	second := s.take()
	s.leave(entered(s, &pb.SessionOperation{}), false)
	third := entered(s, &pb.SessionOperation{})
	s.take()
	s.leave(third, false)
	s.take()
	if len(first.GetOperations()) != 1 || first.GetOperations()[0] != a.operation || len(first.GetCancelled()) != 0 {
		t.Errorf("the first message is now %v", first)
	}
	if c := second.GetCancelled(); len(c) != 1 || c[0] != 1 {
		t.Errorf("the second message is now %v", second)
	}
}

// The time left is that at the send.
func TestTimeLeftIsThatAtTheSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(nil, func() {})
		s.enter(&asked{operation: &pb.SessionOperation{}, deadline: time.Now().Add(3 * time.Second), done: make(chan struct{})})
		time.Sleep(time.Second)
		if got := s.take().GetOperations()[0].GetTimeLeft().AsDuration(); got != 2*time.Second {
			t.Errorf("%v are left", got)
		}
	})
}

// What counts as large is the whole outcome.
func TestLargeMetadataGoesByACall(t *testing.T) {
	scriptedly(t, granting, func(r *sessionRig) {
		r.opens()
		large := &store.Outcome{Header: []store.MetadataEntry{{Name: "x", Value: make([]byte, maxSharing)}}}
		if _, err := r.client.Complete(r.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: 1, Outcome: large}); err != nil {
			r.Fatal(err)
		}
		if calls, _ := r.was(); calls != 1 {
			r.Errorf("%d calls", calls)
		}
	})
}

// The bytes of an outcome are the caller's own again when Complete has returned, also if they
// were not sent until then.
func TestOutcomesAreNotTheCallersBytes(t *testing.T) {
	scriptedly(t, granting, func(r *sessionRig) {
		k := r.client.keys
		s := newSession(nil, func() {}) // nothing is sent by itself
		k.sessions.current.Store(s)
		body := bytes.Repeat([]byte("a"), 100)
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err := r.client.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: "a", Fence: 1, Outcome: &store.Outcome{Body: body}})
		if !errors.Is(err, context.DeadlineExceeded) {
			r.Fatal(err)
		}
		s.mu.Lock()
		got := s.queue[0].operation.GetComplete().GetOutcome().GetBody()
		s.mu.Unlock()
		copy(body, "overwritten")
		if !bytes.Equal(got, bytes.Repeat([]byte("a"), 100)) {
			r.Errorf("to be sent: %q", got)
		}
		k.sessions.current.Store(nil)
	})
}

// A session that the server does not read from ends too, once nobody waits for it.
func TestStuckSessionsEnd(t *testing.T) {
	var open atomic.Int64
	stuck := func(*scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			open.Add(1)
			defer open.Add(-1)
			_ = accepts(stream)
			<-stream.Context().Done()
			return nil
		}
	}
	scriptedly(t, stuck, func(r *sessionRig) {
		for round, end := range []func(){func() { time.Sleep(sessionLife * 5 / 4) }, r.client.keys.sessions.close} {
			time.Sleep(maxReopenPause)
			r.opens()
			if open.Load() != 1 {
				r.Fatalf("%d sessions", open.Load())
			}
			ctx, cancel := context.WithTimeout(r.Context(), time.Second)
			defer cancel()
			var all sync.WaitGroup
			for i := range maxOpen {
				all.Go(func() {
					outcome := &store.Outcome{Body: make([]byte, maxSharing-100)}
					_, _ = r.client.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: fmt.Sprint(i), Fence: 1, Outcome: outcome}) // times out
				})
			}
			all.Wait()
			end()
			time.Sleep(endPatience)
			synctest.Wait()
			if n := open.Load(); n != 0 {
				r.Errorf("round %d: %d sessions are open", round, n)
			}
		}
	})
}
