package client

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
)

// A room bounds the work of one kind that goes on after its callers were answered, and with
// it memory: what does not fit is given up.
type room struct {
	maxWorks, maxBytes int
	works, bytes       int // guarded by background
}

// The rooms of this process. What is lost if it is given up does not compete with what the
// lapse of a key does as well, only later.
var (
	outcomes = &room{maxWorks: 1024, maxBytes: 64 << 20}
	releases = &room{maxWorks: 256}
)

// background is about the work in all rooms.
var background struct {
	sync.Mutex
	works int
	idle  chan struct{} // closed when there is none; nil if nobody waits
}

// Drain waits until every outcome that could not be recorded at once is, or is given up, and
// what an unanswered claim may have been granted is given back, or ctx ends. Call it when
// the process ends, after the server has stopped and before the connection to idemd is
// closed: an outcome that is not recorded lapses.
func Drain(ctx context.Context) error {
	background.Lock()
	if background.works == 0 {
		background.Unlock()
		return nil
	}
	if background.idle == nil {
		background.idle = make(chan struct{})
	}
	idle := background.idle
	background.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run runs work that keeps bytes, unless there is no room for it.
func (r *room) run(bytes int, work func()) bool {
	if !r.enter(bytes) {
		return false
	}
	go func() {
		defer r.leave(bytes)
		defer survive("work in the background")
		work()
	}()
	return true
}

func (r *room) enter(bytes int) bool {
	background.Lock()
	defer background.Unlock()
	if r.works >= r.maxWorks || bytes > 0 && r.bytes+bytes > r.maxBytes {
		return false
	}
	r.works++
	r.bytes += bytes
	background.works++
	return true
}

func (r *room) leave(bytes int) {
	background.Lock()
	defer background.Unlock()
	r.works--
	r.bytes -= bytes
	background.works--
	if background.works == 0 && background.idle != nil {
		close(background.idle)
		background.idle = nil
	}
}

// survive is deferred where a panic must not end the process, as nobody above would recover
// it. The value of the panic is not logged: it may hold a key.
func survive(what string) {
	if p := recover(); p != nil {
		slog.Error("idemd: panic in "+what, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
	}
}

// How long work in the background pauses between two sends: it doubles, half of it is
// random, and it is never shorter than the server's hint. So what a thousand keys wait for
// is no load for a server that comes back (L5).
const (
	firstBackgroundPause = 500 * time.Millisecond
	maxBackgroundPause   = 30 * time.Second
)

func backgroundPause(try int, err error) time.Duration {
	half := min(firstBackgroundPause<<min(try-1, 10), maxBackgroundPause) / 2
	return retryAfter(err) + half + rand.N(half)
}

// persist sends until it is answered, ctx ends or again says that sending again is of no
// use. failed is the error it was answered with before; nil if it was not sent.
func persist(ctx context.Context, failed error, again func(error) bool, pause func(context.Context, time.Duration) bool, send func(context.Context) error) error {
	for try := 1; ; try++ {
		if failed != nil && (!again(failed) || !pause(ctx, backgroundPause(try, failed))) {
			return failed
		}
		if failed = send(ctx); failed == nil {
			return nil
		}
	}
}

// withoutMetadata keeps what the caller sends to others, credentials among it, from being
// sent to the store.
func withoutMetadata(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, nil)
}

// onItsOwn is the context of what goes on without the caller: it does not end with the
// caller's, and paces itself.
func onItsOwn(ctx context.Context) context.Context {
	return context.WithValue(withoutMetadata(context.WithoutCancel(ctx)), sendOnceKey{}, true)
}
