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
	// unservedPause is how long a server that has no sessions is not asked for one: it may be
	// replaced by one that has.
	unservedPause = 10 * time.Minute
	// shortLife is what a session is not worth opening for. Where something between cuts streams
	// sooner, they count as failed; where it cuts them later, at an age that is learnt, the next
	// are ended before.
	shortLife = 5 * time.Second
	// cutMemory is how long a cut is kept in mind: it may have been a server's crash.
	cutMemory = time.Hour
)

// sessions keeps one session open while there is use for it. Nobody waits for one: until it
// is open, and where there is none, what would go by it are calls.
type sessions struct {
	service pb.IdempotencyServiceClient
	within  context.Context // ends with their connection
	current atomic.Pointer[session]
	running sync.WaitGroup // goroutines

	mu       sync.Mutex
	closed   bool
	opening  context.CancelFunc // nil if none is being opened
	failures int                // in a row
	notUntil time.Time
	cutAge   time.Duration // the least age at which one was cut lately
	cutAt    time.Time     // when one was cut last
}

// get returns the session. If there is none, it returns nil, and has one opened if that is
// worth it.
func (p *sessions) get(worth bool) *session {
	if s := p.current.Load(); s != nil || !worth {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current.Load() == nil && p.opening == nil && !p.closed && !time.Now().Before(p.notUntil) {
		ctx, cancel := context.WithCancel(p.within)
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
	begun := time.Now()
	life := time.AfterFunc(p.life(), func() { p.retire(s) })
	defer life.Stop()
	err = s.receive()
	p.retire(s)
	p.ended(s, err, time.Since(begun))
}

// open opens a stream, and waits until the server has accepted it.
func (p *sessions) open(ctx context.Context, cancel context.CancelFunc) (stream pb.IdempotencyService_SessionClient, err error) {
	defer func() {
		if r := recover(); r != nil { // a connection that has calls only, such as a test's
			err = status.Error(codes.Unimplemented, fmt.Sprint("the connection cannot stream: ", r))
		}
	}()
	patience := time.AfterFunc(openPatience, cancel)
	defer func() {
		if !patience.Stop() && err == nil { // cancelled just now
			err = context.Canceled
		}
	}()
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
	if err != nil {
		p.failed()
		if status.Code(err) == codes.Unimplemented {
			p.notUntil = time.Now().Add(unservedPause)
		}
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

// life is how long a session that begins now is used.
func (p *sessions) life() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cutAge == 0 || time.Since(p.cutAt) > cutMemory {
		p.cutAge = 0
		return sessionLife*3/4 + rand.N(sessionLife/2)
	}
	return p.cutAge*3/4 - rand.N(p.cutAge/8)
}

// ended notes why a session ended, and how old it was.
func (p *sessions) ended(s *session, err error, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answered := s.wasAnswered()
	switch {
	case err == nil && answered:
		p.failures = 0
	case err != nil && answered && age >= shortLife:
		p.failures = 0
		p.cut(age)
		p.failed()
	case err != nil:
		p.failed()
	}
}

func (p *sessions) cut(age time.Duration) {
	if age = min(age, sessionLife); p.cutAge == 0 || age < p.cutAge {
		p.cutAge = age
	}
	p.cutAt = time.Now()
}

func (p *sessions) failed() {
	p.notUntil = time.Now().Add(pauseAfter(p.failures, firstReopenPause, maxReopenPause))
	p.failures++
}

// pauseAfter is a random pause, about first, that doubles with the failures before.
func pauseAfter(failures int, first, longest time.Duration) time.Duration {
	half := min(first<<min(failures, 10), longest) / 2
	return half + rand.N(half)
}
