package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

const (
	// sessionLife is about how long a session is used, so that load comes to servers that
	// were added, and leaves those that a balancer does not want any more.
	sessionLife = time.Minute
	// openPatience is how long a server may take to accept a session.
	openPatience = 10 * time.Second
	// The pause before a session is opened after one that failed.
	firstReopenPause = 100 * time.Millisecond
	maxReopenPause   = time.Minute
)

// sessions keeps one session open while there is use for it. Nobody waits for one: until it
// is open, and where there is none, what would go by it are calls.
type sessions struct {
	service pb.IdempotencyServiceClient
	current atomic.Pointer[session]
	running sync.WaitGroup // goroutines

	mu       sync.Mutex
	closed   bool
	unserved bool               // the server has no sessions
	opening  context.CancelFunc // nil if none is being opened
	failures int                // in a row
	notUntil time.Time
}

// get returns the session. If there is none, it returns nil, and has one opened if that is
// worth it.
func (p *sessions) get(worth bool) *session {
	if s := p.current.Load(); s != nil || !worth {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current.Load() == nil && p.opening == nil && !p.closed && !p.unserved && !time.Now().Before(p.notUntil) {
		ctx, cancel := context.WithCancel(context.Background())
		p.opening = cancel
		p.running.Go(func() { p.run(ctx, cancel) })
	}
	return nil
}

// close ends the session, after what is in flight, and lets none be opened any more.
func (p *sessions) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.opening != nil {
		p.opening()
	}
	if s := p.current.Load(); s != nil {
		s.retire()
	}
}

// run is the life of one session.
func (p *sessions) run(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	stream, err := p.open(ctx, cancel)
	s := newSession(stream, cancel)
	if !p.opened(s, err) {
		return
	}
	p.running.Go(s.send)
	life := time.AfterFunc(sessionLife*3/4+rand.N(sessionLife/2), func() { p.retire(s) })
	defer life.Stop()
	err = s.receive()
	p.retire(s)
	p.ended(err)
}

// open opens a stream, and waits until the server has accepted it.
func (p *sessions) open(ctx context.Context, cancel context.CancelFunc) (stream pb.IdempotencyService_SessionClient, err error) {
	defer func() {
		if r := recover(); r != nil { // a connection that has calls only, such as a test's
			err = status.Error(codes.Unimplemented, fmt.Sprint("the connection cannot stream: ", r))
		}
	}()
	patience := time.AfterFunc(openPatience, cancel)
	defer patience.Stop()
	stream, err = p.service.Session(ctx)
	if err != nil {
		return nil, err
	}
	header, err := stream.Header()
	if err == nil && header == nil { // it ended without any
		_, err = stream.Recv()
	}
	if err == nil {
		err = ctx.Err()
	}
	return stream, err
}

// opened notes what became of opening a session, and reports whether there is one.
func (p *sessions) opened(s *session, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening = nil
	p.unserved = status.Code(err) == codes.Unimplemented
	if err != nil {
		p.failed()
		return false
	}
	p.current.Store(s)
	if p.closed {
		s.retire()
	}
	return true
}

// retire lets nobody use the session any more.
func (p *sessions) retire(s *session) {
	p.current.CompareAndSwap(s, nil)
	s.retire()
}

// ended notes why a session ended.
func (p *sessions) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.failures = 0
		return
	}
	p.failed()
}

func (p *sessions) failed() {
	half := min(firstReopenPause<<min(p.failures, 10), maxReopenPause) / 2
	p.failures++
	p.notUntil = time.Now().Add(half + rand.N(half))
}
