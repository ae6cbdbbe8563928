package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// ErrLeaseLost is the cause ([context.Cause]) with which the context of whoever acts is
// cancelled: the right to act is over, and another attempt may be acting. Stop.
var ErrLeaseLost = errors.New("the lease of this attempt is over")

// A lease is the right to act, kept from a grant until stop. It renews itself, and when it
// is lost it cancels the context of whoever acts.
//
// It goes by this process's monotonic clock alone: the lease lasts from the instant the
// request that was answered was sent, for as long as the answer says, less a margin. So it
// ends here before it ends at the store, whatever the two clocks say.
type lease struct {
	store   store.Store
	request store.RenewRequest
	ctx     context.Context // of the renewals: not ended by the caller's going away
	lose    context.CancelCauseFunc

	cancel context.CancelFunc // ends renewals
	timer  *time.Timer        // starts keep, which most attempts end before

	mu       sync.Mutex
	deadline time.Time
	stopped  bool
	kept     chan struct{} // closed when keep has returned; nil before it starts
}

// holdLease returns a context for whoever acts, and the lease that bounds it. Whoever calls
// it calls stop.
func holdLease(ctx context.Context, s store.Store, req store.ClaimRequest, granted *store.Granted, sent time.Time) (context.Context, *lease) {
	acting, lose := context.WithCancelCause(ctx)
	renewing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &lease{
		store:    s,
		request:  store.RenewRequest{Key: req.Key, AttemptID: req.AttemptID, Fence: granted.Fence, Lease: req.Lease},
		ctx:      renewing,
		lose:     lose,
		cancel:   cancel,
		deadline: holderDeadline(sent, granted.HeldFor, granted.LeaseRemaining),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(beforeRenewal(l.deadline), l.keep)
	return acting, l
}

// holderDeadline is until when a holder may rely on its lease: see [store.Granted].
func holderDeadline(sent time.Time, heldFor, remaining time.Duration) time.Time {
	margin := min(remaining/10, time.Second)
	return sent.Add(heldFor + remaining - margin)
}

// shortPause is the least time between two renewals, and for one.
const shortPause = 50 * time.Millisecond

// beforeRenewal leaves two thirds of what is left for renewals that fail.
func beforeRenewal(deadline time.Time) time.Duration {
	return time.Until(deadline) / 3
}

func (l *lease) until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// keep renews the lease until it is stopped or lost.
func (l *lease) keep() {
	if !l.begin() {
		return
	}
	defer close(l.kept)
	for {
		again, err := l.renew()
		if err != nil {
			l.lose(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		}
		if !pause(l.ctx, again) {
			return
		}
	}
}

func (l *lease) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.kept = make(chan struct{})
	return true
}

var errDeadlinePassed = errors.New("its deadline passed before a renewal was answered")

// renew asks once for more time. It returns when to ask again, or why the lease is lost.
func (l *lease) renew() (again time.Duration, err error) {
	deadline := l.until()
	left := time.Until(deadline)
	if left <= 0 {
		return 0, errDeadlinePassed
	}
	ctx, cancel := context.WithTimeout(l.ctx, max(left/2, min(left, shortPause))) // so that one that hangs can be sent again
	defer cancel()
	sent := time.Now()
	answer, err := l.store.Renew(ctx, l.request)
	switch {
	case err == nil:
		l.extend(holderDeadline(sent, answer.HeldFor, answer.LeaseRemaining))
		return beforeRenewal(l.until()), nil
	case errors.Is(err, store.ErrAttemptTooLong):
		return max(time.Until(deadline), 0), nil // what is left can be used
	case worthRetrying(err) || isContextError(err):
		left := max(time.Until(deadline), 0)
		return min(max(left/3, shortPause), left, maxPause), nil
	default:
		return 0, err
	}
}

// extend moves the deadline, never back: a lease is not shortened by renewing it.
func (l *lease) extend(deadline time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if deadline.After(l.deadline) {
		l.deadline = deadline
	}
}

// stop ends the renewals, and with them the context of whoever acts. It returns when none
// is on its way any more.
func (l *lease) stop() {
	l.mu.Lock()
	l.stopped = true
	kept := l.kept
	l.mu.Unlock()
	l.timer.Stop()
	l.cancel()
	if kept != nil {
		<-kept
	}
	l.lose(nil)
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
