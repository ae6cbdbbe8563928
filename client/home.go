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

// home is the connection to a region other than that of the dialled server.
type home struct {
	conn *grpc.ClientConn
	keys *keyCalls

	heard atomic.Int64 // when the last answer came; all times are by routes.now
	until atomic.Int64 // when the pause ends

	mu       sync.Mutex
	failures int // in a row
}

func newHome(conn *grpc.ClientConn) *home {
	return &home{conn: conn, keys: newKeyCalls(conn)}
}

// ready reports whether an operation can be sent at once. If it cannot, the connection is being
// made, which goes on until there is one.
func (h *home) ready(now time.Duration) bool {
	switch h.conn.GetState() {
	case connectivity.Ready:
		return int64(now) >= h.until.Load()
	case connectivity.Idle:
		h.conn.Connect()
	}
	return false
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

func (h *home) close() {
	h.keys.sessions.close()
	_ = h.conn.Close() // it says only whether it was closed before
	h.keys.sessions.running.Wait()
}
