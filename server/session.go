package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// The first three are promised in the .proto.
const (
	// maxSessions is how many sessions one connection may have, or streams of reflection. Of
	// each, a message may be on its way.
	maxSessions = 8
	// maxOpen is how many operations may be open in a session, and share a message.
	maxOpen = 1024
	// closingPatience is how long a client may go on after it was told of the drain.
	closingPatience = time.Second
)

// session is a stream that carries many operations. Each goes through what its call would
// go through, in a goroutine of its own, so that none waits for another.
type session struct {
	service *keyService
	stream  pb.IdempotencyService_SessionServer
	methods [sessionMethods]context.Context // what the operations of each run in
	out     *outbox
	workers *workers
	cut     chan struct{} // closed when the drain waits for the client no more

	running sync.WaitGroup // operations that are not answered

	mu   sync.Mutex
	open map[uint64]context.CancelFunc // operations by id
	over bool                          // none begins any more
}

// Session implements the IdempotencyService.
func (s *keyService) Session(stream pb.IdempotencyService_SessionServer) error {
	err := s.session(stream)
	var refused *store.Error
	if errors.As(err, &refused) {
		s.calls.refused(stream.Context(), nil, pb.IdempotencyService_Session_FullMethodName, storepb.ToStatus(err), err)
	}
	return err
}

func (s *keyService) session(stream pb.IdempotencyService_SessionServer) error {
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	x := &session{service: s, stream: stream, out: newOutbox(stream.Send), cut: make(chan struct{}), open: map[uint64]context.CancelFunc{}}
	x.workers = newWorkers(x.carryOutInTurn)
	for op := range x.methods {
		x.methods[op] = s.methodContext(ctx, operation(op))
	}
	go x.out.run()
	return x.serve(cancel)
}

// serve reads until the client half-closes, and answers what was read.
func (x *session) serve(cancel context.CancelFunc) error {
	served := make(chan struct{})
	defer close(served)
	go x.awaitDrain(served)
	read := make(chan error, 1)
	go func() { read <- x.read() }()
	var err error
	select {
	case err = <-read:
	case <-x.cut: // nothing can be read from a stream that has ended: it does soon
		err = errDraining
	}
	if err != nil && !errors.Is(err, errDraining) {
		cancel() // nobody can be answered, or the client cannot be trusted
	}
	x.noMore()
	x.running.Wait()
	x.workers.end()
	x.out.end()
	if !x.flushed() {
		err = errDraining
	}
	return err
}

// flushed waits until the answers are sent; not for ever, during the drain, for somebody who
// does not read them.
func (x *session) flushed() bool {
	select {
	case <-x.out.ended:
		return true
	case <-x.cut:
	}
	patience := time.NewTimer(closingPatience)
	defer patience.Stop()
	select {
	case <-x.out.ended:
		return true
	case <-patience.C:
		return false
	}
}

// awaitDrain tells the client of the drain, and ends its patience with it some time later.
func (x *session) awaitDrain(served <-chan struct{}) {
	select {
	case <-x.service.calls.draining:
	case <-served:
		return
	}
	x.out.sayClosing()
	patience := time.NewTimer(closingPatience)
	defer patience.Stop()
	select {
	case <-patience.C:
		x.out.lift()
		close(x.cut)
	case <-served:
	}
}

func (x *session) read() error {
	for {
		x.out.wait()
		m := &pb.SessionRequest{}
		f := frame{message: m}
		if err := x.stream.RecvMsg(&f); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if f.err != nil {
			return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the message is no %T: %v", m, f.err))
		}
		if err := x.take(m); err != nil {
			return err
		}
	}
}

func (x *session) take(m *pb.SessionRequest) error {
	if n := len(m.GetOperations()); n > maxOpen {
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the message has %d operations, and may have %d; none was done", n, maxOpen))
	}
	at, refused := time.Now(), false
	for _, m := range m.GetOperations() {
		o := x.operation(m, at)
		if err := x.enter(o); err != nil {
			o.cancel()
			return err
		}
		if o.entered {
			x.workers.run(o)
			continue
		}
		o.quiet, refused = refused, true
		x.out.wait()
		x.carryOut(o, nil) // refuses it
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range m.GetCancelled() {
		if cancel := x.open[id]; cancel != nil {
			cancel()
		}
	}
	return nil
}

// operation returns an operation that was received at an instant.
func (x *session) operation(m *pb.SessionOperation, at time.Time) *sessionOperation {
	o := &sessionOperation{id: m.GetId(), cancel: func() {}}
	o.op, o.request = requestIn(m)
	if o.request != nil {
		o.ctx, o.cancel = operationContext(x.methods[o.op], m.GetTimeLeft(), at)
	}
	return o
}

func (x *session) enter(o *sessionOperation) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.over:
		return errDraining
	case x.open[o.id] != nil:
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the session has an open operation %d already", o.id))
	case len(x.open) < maxOpen:
		x.open[o.id] = o.cancel
		o.entered = true
	}
	x.running.Add(1)
	return nil
}

// carryOutInTurn carries an operation out; one whose answer may be large, once there is room
// for that.
func (x *session) carryOutInTurn(o *sessionOperation) {
	var reserved reservation
	if o.op == opClaim || o.op == opLookup {
		reserved = x.out.reserve(o.ctx, waits(o.request))
	}
	x.carryOut(o, reserved)
}

// waits reports whether the request is a Claim that waits.
func waits(request any) bool {
	claim, ok := request.(*pb.ClaimRequest)
	return ok && claim.GetWait() != nil
}

// carryOut answers an operation.
func (x *session) carryOut(o *sessionOperation, reserved reservation) {
	defer x.running.Done()
	answer := x.service.answer(o)
	o.cancel()
	if o.entered {
		x.mu.Lock()
		delete(x.open, o.id) // the answer lets the client use the id again
		x.mu.Unlock()
	}
	x.out.put(answer, reserved)
}

// noMore lets no further operation begin.
func (x *session) noMore() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
}
