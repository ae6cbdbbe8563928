package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
// ends here before it ends at the store, however the two clocks are set. That holds while
// this machine runs: when it is suspended its monotonic clock stands still, and whoever acts
// goes on after it resumes, although the lease may be over. Nothing in the process can tell
// in time; the fence can.
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
	expiry   *time.Timer    // at the deadline, once keep runs
	working  sync.WaitGroup // keep, and the renewals on their way
}

// holdLease returns a context for whoever acts, and the lease that bounds it. Whoever calls
// it calls stop.
func holdLease(ctx context.Context, s store.Store, req store.ClaimRequest, granted *store.Granted, sent time.Time) (context.Context, *lease) {
	acting, lose := context.WithCancelCause(ctx)
	renewing, cancel := context.WithCancel(onItsOwn(ctx))
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

// shortPause is the least time between two renewals.
const shortPause = 50 * time.Millisecond

// beforeRenewal leaves two thirds of what is left for renewals that fail.
func beforeRenewal(deadline time.Time) time.Duration {
	return max(time.Until(deadline)/3, shortPause)
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
	defer l.working.Done()
	for {
		if err := l.renew(); err != nil {
			l.lost(err)
			return
		}
		if !pause(l.ctx, beforeRenewal(l.until())) {
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
	l.working.Add(1)
	l.expiry = time.AfterFunc(time.Until(l.deadline), l.expire)
	return true
}

// expire ends the lease at its deadline, whatever a renewal is doing then.
func (l *lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.deadline); left > 0 {
		l.expiry.Reset(left)
		return
	}
	l.lost(errDeadlinePassed)
}

func (l *lease) lost(why error) { l.lose(fmt.Errorf("%w: %w", ErrLeaseLost, why)) }

var errDeadlinePassed = errors.New("its deadline passed before a renewal was answered")

// renewTries is about how often one renewal is sent until the deadline.
const renewTries = 5

// renew asks for more time until it is answered. One that hangs is sent again while it goes
// on: its answer counts until the deadline. An error says why the lease is lost.
func (l *lease) renew() error {
	deadline := l.until()
	left := time.Until(deadline)
	if left <= 0 {
		return errDeadlinePassed
	}
	ctx, cancel := context.WithDeadline(l.ctx, deadline)
	defer cancel()
	step := max(left/renewTries, shortPause)
	answers := make(chan renewal)
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			if l.ctx.Err() != nil {
				return nil // stopped
			}
			return errDeadlinePassed
		case <-again.C:
			l.working.Go(func() { l.send(ctx, answers) })
			again.Reset(max(time.Until(deadline)/2, step))
		case a := <-answers:
			switch {
			case a.err == nil:
				l.extend(a.deadline)
				return nil
			case attemptIsOver(a.err):
				return a.err
			case errors.Is(a.err, store.ErrAttemptTooLong):
				again.Stop() // what is left can be used
			default:
				again.Reset(max(retryAfter(a.err), step/2+rand.N(step)))
			}
		}
	}
}

// A renewal is what came of one Renew.
type renewal struct {
	deadline time.Time
	err      error
}

// send asks once for more time.
func (l *lease) send(ctx context.Context, answers chan<- renewal) {
	defer survive("renewing a lease")
	sent := time.Now()
	answer, err := l.store.Renew(ctx, l.request)
	select {
	case answers <- renewal{holderDeadline(sent, answer.HeldFor, answer.LeaseRemaining), err}:
	case <-ctx.Done():
	}
}

// attemptIsOver reports whether err is the store's word that the attempt's right to act, or
// its record, is gone. Any other refusal may be one of something in between, or pass.
func attemptIsOver(err error) bool {
	return isAny(err, store.ErrStaleFence, store.ErrStaleAttempt, store.ErrLeaseExpired, store.ErrAlreadyCompleted, store.ErrKeyNotFound)
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
	if l.expiry != nil {
		l.expiry.Stop()
	}
	l.mu.Unlock()
	l.timer.Stop()
	l.cancel()
	l.working.Wait()
	l.lose(nil)
}

func isContextError(err error) bool {
	return isAny(err, context.Canceled, context.DeadlineExceeded)
}
