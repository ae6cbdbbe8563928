package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	// recordTimeout is how long a caller waits for what it did to be recorded.
	recordTimeout = 5 * time.Second
	// recordFor is how long recording goes on in the background after that.
	recordFor = 10 * time.Minute
	// maxBackground bounds what waits to be recorded, and with it memory: one more is given
	// up, and its key lapses.
	maxBackground = 1024
)

// background counts the recordings of this process that go on after their callers were answered.
var background struct {
	sync.Mutex
	running int
	idle    chan struct{} // closed when none is running; nil if nobody waits
}

// Drain waits until every outcome that could not be recorded at once is, or is given up, or
// ctx ends. Call it when the process ends, after the server has stopped and before the
// connection to idemd is closed: an outcome that is not recorded lapses.
func Drain(ctx context.Context) error {
	background.Lock()
	if background.running == 0 {
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

// inBackground runs work, unless too much is running already.
func inBackground(work func()) bool {
	background.Lock()
	defer background.Unlock()
	if background.running >= maxBackground {
		return false
	}
	background.running++
	go func() {
		defer backgroundDone()
		work()
	}()
	return true
}

func backgroundDone() {
	background.Lock()
	defer background.Unlock()
	background.running--
	if background.running == 0 && background.idle != nil {
		close(background.idle)
		background.idle = nil
	}
}

// record stores how an attempt ended. It does not end with the caller's context: the
// caller may be gone, the effect is not.
func (x *execution) record(ctx context.Context, end ending) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	return x.send(ctx, end)
}

// send asks the store once to end the attempt.
func (x *execution) send(ctx context.Context, end ending) error {
	a := x.attempt
	if end.outcome == nil {
		_, err := x.store.Release(ctx, store.ReleaseRequest{Key: a.Key, AttemptID: a.ID, Fence: a.Fence, Effect: end.effect})
		return err
	}
	req := store.CompleteRequest{Key: a.Key, AttemptID: a.ID, Fence: a.Fence, Outcome: end.outcome}
	_, err := x.store.Complete(ctx, req)
	if errors.Is(err, store.ErrOutcomeTooLarge) && !end.outcome.BodyOmitted {
		req.Outcome = withoutBody(end.outcome)
		_, err = x.store.Complete(ctx, req)
	}
	return err
}

// recordLater goes on recording under the lease, which it stops in the end.
func (x *execution) recordLater(ctx context.Context, end ending) bool {
	return inBackground(func() {
		defer x.lease.stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordFor)
		defer cancel()
		x.recorded(end, x.recordUntilAnswered(ctx, end))
	})
}

// settleLater has the end of an attempt recorded without anybody waiting for it.
func (x *execution) settleLater(ctx context.Context, end ending) {
	x.lease.lose(nil)
	if !x.recordLater(ctx, end) {
		x.lease.stop()
		x.tell(EventRecordingFailed, errTooMuchToRecord)
	}
}

var errTooMuchToRecord = errors.New("too many outcomes wait to be recorded")

func (x *execution) recordUntilAnswered(ctx context.Context, end ending) error {
	for try := 1; ; try++ {
		err := x.record(ctx, end)
		if err == nil || !unanswered(err) || !pause(ctx, pauseBefore(min(try, 8), err)) {
			return err
		}
	}
}

// isDown reports whether an error of a claim says that the store does not answer. A caller
// that went away, and a namespace that used up its share, are no such thing.
func isDown(err error) bool {
	return unanswered(err) && !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrQuota)
}

// unanswered reports whether the store may yet answer, if asked again.
func unanswered(err error) bool {
	return worthRetrying(err) || isContextError(err)
}
