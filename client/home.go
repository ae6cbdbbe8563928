package client

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// A home that does not answer as it should is not asked for a pause.
const (
	firstHomePause = time.Second
	maxHomePause   = 30 * time.Second
)

// home is the way to a region other than that of the dialled server.
type home struct {
	connect func() (*grpc.ClientConn, error)
	now     func() time.Duration // routes.now, by which all times are
	line    atomic.Pointer[line] // another one once it was silent: TCP comes back too late from a hole
	running sync.WaitGroup       // goroutines that watch lines

	heard atomic.Int64 // when the last answer came
	until atomic.Int64 // when the pause ends

	mu       sync.Mutex
	failures int // in a row
	closed   bool
}

func newHome(connect func() (*grpc.ClientConn, error), now func() time.Duration) (*home, error) {
	conn, err := connect()
	if err != nil {
		return nil, err
	}
	h := &home{connect: connect, now: now}
	h.line.Store(newLine(conn, h))
	return h, nil
}

// ready returns the line if an operation can be sent at once. If it cannot, the connection is
// being made, which goes on until there is one.
func (h *home) ready(now time.Duration) *line {
	l := h.line.Load()
	switch l.conn.GetState() {
	case connectivity.Ready:
		if int64(now) >= h.until.Load() {
			return l
		}
	case connectivity.Idle:
		l.conn.Connect()
	}
	return nil
}

// answered notes that the home is there.
func (h *home) answered(now time.Duration) {
	if h.heard.Swap(int64(now)) > h.until.Load() {
		return // the usual case: it has been there since the last pause
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = 0
}

// silentSince reports whether no answer came after then.
func (h *home) silentSince(then time.Duration) bool { return h.heard.Load() <= int64(then) }

// avoid begins a pause. Of those that were on the way together only the first counts.
func (h *home) avoid(now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if int64(now) < h.until.Load() {
		return
	}
	h.until.Store(int64(now + pauseAfter(h.failures, firstHomePause, maxHomePause)))
	h.failures++
}

// resume ends the pause.
func (h *home) resume() { h.until.Store(0) }

// leave is for a line that is silent: it is replaced, and what is in flight on it ends.
func (h *home) leave(silent *line) {
	h.avoid(h.now())
	h.replace()
	silent.close()
}

func (h *home) replace() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if conn, err := h.connect(); err == nil { // else the one that is closed is never ready again
		h.line.Store(newLine(conn, h))
	}
}

func (h *home) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.line.Load().close()
	h.running.Wait()
}
