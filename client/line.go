package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	// homePatience is how long nothing may come from a home that was asked before it is asked
	// whether it is there, and pingPatience how long it may take to say so: a few round trips on
	// the longest way there is.
	homePatience = 500 * time.Millisecond
	pingPatience = 900 * time.Millisecond
)

// line is one connection to a home. That no answer comes is no proof that it is silent, since an
// operation may take long or wait: so it is pinged then. While answers are due, and only then,
// a goroutine watches it.
type line struct {
	conn *grpc.ClientConn
	keys *keyCalls
	home *home

	// life ends with the line, and with it what is in flight: gRPC takes seconds to close a
	// connection that takes no more bytes.
	life context.Context
	cut  context.CancelFunc

	mu       sync.Mutex
	inFlight int
	due      bool          // something is in flight, or its caller has left without an answer
	since    time.Duration // when it became due, or the last sign of life since
	watched  bool
}

func newLine(conn *grpc.ClientConn, h *home) *line {
	l := &line{conn: conn, home: h}
	l.life, l.cut = context.WithCancel(context.Background())
	l.keys = newKeyCalls(l)
	l.keys.sessions.within = l.life
	return l
}

// close ends what is in flight: it may have been done or not.
func (l *line) close() {
	l.mu.Lock()
	l.cut()
	l.mu.Unlock()
	l.keys.sessions.close()
	_ = l.conn.Close() // it says only whether it was closed before
	l.keys.sessions.running.Wait()
}

// errCut is of what was in flight when the line was closed, or sent afterwards.
var errCut = status.Error(codes.Unavailable, "the connection to the key's home was given up")

// Invoke implements [grpc.ClientConnInterface].
func (l *line) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	lasting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	err := l.conn.Invoke(lasting, method, args, reply, opts...)
	if err != nil && l.life.Err() != nil && ctx.Err() == nil && status.Code(err) == codes.Canceled {
		return errCut
	}
	return err
}

// NewStream implements [grpc.ClientConnInterface]. Sessions end with the line by themselves.
func (l *line) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.conn.NewStream(ctx, desc, method, opts...)
}

// begins notes that an operation is sent, and ended that its caller waits for it no more.
func (l *line) begins(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight++
	if !l.due {
		l.due, l.since = true, now
	}
	if !l.watched && l.life.Err() == nil {
		l.watched = true
		l.home.running.Go(l.watch)
	}
}

func (l *line) ended(now time.Duration, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	if answered {
		l.lives(now)
	}
}

// lives is called with the lock held.
func (l *line) lives(now time.Duration) { l.due, l.since = l.inFlight > 0, now }

// watch lasts until nothing is due any more.
func (l *line) watch() {
	for {
		since, due := l.quiet()
		if !due {
			return
		}
		if left := since + homePatience - l.home.now(); left > 0 {
			if !pause(l.life, left) {
				return
			}
		} else if !l.answersPing(since) {
			l.home.leave(l)
			return
		}
	}
}

// quiet is since when nothing has come, though something was due. If it is not, nobody watches
// any more.
func (l *line) quiet() (since time.Duration, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched = l.due
	return l.since, l.due
}

// answersPing reports whether there was an answer: any one will do, such as that there is no such
// service, or that to an operation. What was in flight on a connection that broke has ended by
// that.
func (l *line) answersPing(quiet time.Duration) bool {
	ctx, cancel := context.WithTimeout(l.life, pingPatience)
	defer cancel()
	var err error
	if l.conn.GetState() == connectivity.Ready {
		_, err = healthpb.NewHealthClient(l.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		return l.since > quiet
	}
	l.lives(l.home.now())
	return true
}
