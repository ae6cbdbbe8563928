package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

const (
	// maxOpen is how many operations a server lets be open in a session.
	maxOpen = 1024
	// maxMessage is about how many bytes of operations share a message.
	maxMessage = 64 << 10
	// endPatience is how long a server may take to end a session that nobody waits for.
	endPatience = 10 * time.Second
	// silence is how long nothing may come from the server, though it was asked, before a caller
	// who gives up has the session given up too.
	silence = 1500 * time.Millisecond
)

// session is one stream of operations. Nobody who asks ever waits for the stream to take
// something: a goroutine sends what is queued, all of it in one message.
type session struct {
	stream pb.IdempotencyService_SessionClient
	cancel context.CancelFunc
	wake   chan struct{} // has an element if there is something to do for send
	ended  chan struct{} // closed when nothing can be received any more

	mu          sync.Mutex
	last        uint64
	queue       []*asked // not sent
	left        []uint64 // sent, but their callers have left: to be said
	open        map[uint64]*asked
	waiting     int // callers
	retired     bool
	patience    *time.Timer // runs giveUp, once retired
	answered    bool        // there was an answer
	silentSince time.Time   // when the first was sent since something came; zero: none was
}

// asked is an operation, and then its answer.
type asked struct {
	operation *pb.SessionOperation
	deadline  time.Time // zero: none
	size      int
	sent      bool
	abandoned bool // its caller has left

	done   chan struct{} // closed when there is an answer, or an error instead
	answer *pb.SessionAnswer
	err    error
}

func newSession(stream pb.IdempotencyService_SessionClient, cancel context.CancelFunc) *session {
	return &session{
		stream: stream, cancel: cancel,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), open: map[uint64]*asked{},
	}
}

// errNotSent says that nothing was sent: another way is as good.
var errNotSent = errors.New("not sent by the session")

// ask returns the answer to an operation, or errNotSent.
func (s *session) ask(ctx context.Context, operation *pb.SessionOperation) (*pb.SessionAnswer, error) {
	a := &asked{operation: operation, done: make(chan struct{})}
	a.deadline, _ = ctx.Deadline()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !s.enter(a) {
		return nil, errNotSent
	}
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
		s.leave(a, errors.Is(ctx.Err(), context.DeadlineExceeded))
		return nil, ctx.Err()
	}
}

// sizeOf is about how many bytes an operation takes: what can be large is an outcome.
func sizeOf(operation *pb.SessionOperation) int {
	return 512 + proto.Size(operation.GetComplete().GetOutcome())
}

func (s *session) enter(a *asked) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired || len(s.open) >= maxOpen {
		return false
	}
	s.last++
	a.operation.Id = s.last
	a.size = sizeOf(a.operation)
	s.open[s.last] = a
	s.queue = append(s.queue, a)
	s.waiting++
	s.notify()
	return true
}

// leave is for a caller whose context has ended. What was sent stays open until the server
// has answered it. If the time was up, and nothing at all came for long, others shall not wait
// in vain too.
func (s *session) leave(a *asked, timeUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := a.operation.GetId()
	if s.open[id] != a {
		return // answered meanwhile
	}
	s.waiting--
	a.abandoned = true
	if a.sent {
		s.left = append(s.left, id)
		s.notify()
	}
	if timeUp && !s.silentSince.IsZero() && time.Since(s.silentSince) >= silence {
		s.retireLocked()
	}
}

func (s *session) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// retire lets no further operation in. Those that are in it are answered, and then it ends.
func (s *session) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireLocked()
}

func (s *session) retireLocked() {
	if !s.retired {
		s.retired = true
		s.patience = time.AfterFunc(endPatience, s.giveUp)
	}
	s.notify()
}

// giveUp cancels a retired session once nobody waits for it. The server ends it by itself when
// everything is answered, but nobody shall depend on that, nor on its reading what is sent.
func (s *session) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		s.patience.Reset(endPatience)
		return
	}
	s.cancel()
}

// send sends what is queued until the session is retired or broken.
func (s *session) send() {
	for {
		select {
		case <-s.wake:
		case <-s.ended:
			return
		}
		runtime.Gosched() // what others are about to ask shares the message
		for m := s.take(); m != nil; m = s.take() {
			if s.stream.Send(m) != nil {
				return // receive gets the reason
			}
		}
		if s.isRetired() {
			_ = s.stream.CloseSend() // never fails
			return
		}
	}
}

// take moves what is queued to a message, as far as it has room; nil if there is nothing. The
// message is a new one: gRPC may look at it after it was sent.
func (s *session) take() *pb.SessionRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &pb.SessionRequest{Cancelled: s.left}
	s.left = nil
	taken, size := 0, 0
	for ; taken < len(s.queue) && (len(m.Operations) == 0 || size+s.queue[taken].size <= maxMessage); taken++ {
		a := s.queue[taken]
		if a.abandoned { // the server need not know of it
			delete(s.open, a.operation.GetId())
			continue
		}
		a.sent = true
		size += a.size
		if !a.deadline.IsZero() {
			a.operation.TimeLeft = durationpb.New(time.Until(a.deadline))
		}
		m.Operations = append(m.Operations, a.operation)
	}
	rest := copy(s.queue, s.queue[taken:])
	clear(s.queue[rest:])
	s.queue = s.queue[:rest]
	if len(m.GetOperations())+len(m.GetCancelled()) == 0 {
		return nil
	}
	if s.silentSince.IsZero() && len(m.GetOperations()) > 0 {
		s.silentSince = time.Now()
	}
	return m
}

func (s *session) isRetired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired && len(s.queue) == 0
}

// receive hands out the answers until there are no more, and returns why; nil if the session
// ended as it should.
func (s *session) receive() error {
	defer s.cancel()
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return s.fail(err)
		}
		if m.GetClosing() {
			s.retire()
		}
		s.deliver(m.GetAnswers())
	}
}

func (s *session) deliver(answers []*pb.SessionAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silentSince = time.Time{}
	for _, answer := range answers {
		a := s.open[answer.GetId()]
		if a == nil {
			continue
		}
		a.answer, s.answered = answer, true
		s.close(a)
	}
}

func (s *session) wasAnswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered
}

// close lets the caller of an operation go that has its answer or its error.
func (s *session) close(a *asked) {
	delete(s.open, a.operation.GetId())
	if !a.abandoned {
		s.waiting--
	}
	close(a.done)
}

// fail ends what is not answered: it may have been done or not, unless it was not sent. It
// returns nil if everything is answered and the server has ended the session in order, or
// was asked to.
func (s *session) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 && (s.retired || errors.Is(err, io.EOF)) {
		err = nil
	}
	s.retired = true
	if s.patience != nil {
		s.patience.Stop()
	}
	broken := brokenOff(err)
	for _, a := range s.open {
		a.err = broken
		if !a.sent {
			a.err = errNotSent
		}
		s.close(a)
	}
	s.queue = nil
	close(s.ended)
	return err
}

// brokenOff is the error of what was not answered when its session ended: that of a call
// whose connection broke.
func brokenOff(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the session ended without an answer")
	}
	st := status.Convert(err)
	return status.Error(codes.Unavailable, fmt.Sprintf("the session broke off: %v: %s", st.Code(), st.Message()))
}
