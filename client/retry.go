package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// How a call is retried: at most maxTries times, each after a random part of a pause that
// doubles from firstPause to maxPause, and never sooner than the server's hint says.
const (
	maxTries   = 5
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// A retryBudget bounds retries to a tenth of the calls, and one a second for callers that
// make few, so that clients do not keep down a server that cannot keep up (L5).
const (
	retriesPerCall   = 0.1
	retriesPerSecond = 1
	retryReserve     = 10
)

type retryBudget struct {
	mu      sync.Mutex
	spent   float64 // of the reserve; zero when it is full
	updated time.Time
}

// called counts a call that is not a retry.
func (b *retryBudget) called() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-retriesPerCall, 0)
}

// take reports whether one more retry is within the budget.
func (b *retryBudget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.spent > 0 {
		b.spent = max(b.spent-retriesPerSecond*now.Sub(b.updated).Seconds(), 0)
	}
	b.updated = now
	if b.spent+1 > retryReserve {
		return false
	}
	b.spent++
	return true
}

// Retries sends calls of any protocol again: at most five times, after pauses that grow, are
// random and keep to the server's hint, and for no more than a tenth of the calls and one a
// second. It is what [UnaryClientInterceptor] does. The zero Retries is ready for use, by any
// number of goroutines.
type Retries struct{ budget retryBudget }

// Do calls try until it says that the call is not worth sending again, or ctx or what is allowed
// ends, and returns its last error. The hint of when to send again is that of a [store.Error] in
// it. A try that is to be made again returns an error.
func (r *Retries) Do(ctx context.Context, try func() (again bool, err error)) error {
	r.budget.called()
	again := false
	_, _, err := retryIf(ctx, &r.budget, func(error) bool { return again }, func() (_ struct{}, err error) {
		again, err = try()
		return struct{}{}, err
	})
	return err
}

// retry sends an operation on a key until it is answered. The result is that of the last
// time it was sent, which was later than the first by the duration returned.
func retry[T any](ctx context.Context, budget *retryBudget, send func() (T, error)) (answer T, later time.Duration, err error) {
	if ctx.Value(sendOnceKey{}) != nil {
		return retryIf(ctx, budget, func(error) bool { return false }, send)
	}
	budget.called()
	return retryIf(ctx, budget, worthRetrying, send)
}

// sendOnceKey marks the context of what is sent again by whoever sends it, at a pace of its
// own, unless there is another way. It is no call that retries are earned with either.
type sendOnceKey struct{}

// retryIf retries what is worth it, and what can be sent by another way.
func retryIf[T any](ctx context.Context, budget *retryBudget, worth func(error) bool, send func() (T, error)) (answer T, later time.Duration, err error) {
	start := time.Now()
	for try := 1; ; try++ {
		answer, err = send()
		if err == nil || try == maxTries {
			return answer, later, err
		}
		again := hasOtherWay(err) || worth(err) && budget.take() && pause(ctx, pauseBefore(try, err))
		if !again {
			return answer, later, err
		}
		later = time.Since(start)
	}
}

// worthRetrying reports whether the same call may succeed if it is sent again: nothing was
// done, or it may have been done, and then sending it again gives the same result (L2).
func worthRetrying(err error) bool {
	return isAny(err, store.ErrUnavailable, store.ErrHomeUnreachable, store.ErrNamespaceMoving, store.ErrInternal, store.ErrOverloaded, store.ErrQuota)
}

// isAny reports whether err is or wraps one of the sentinels.
func isAny(err error, sentinels ...error) bool {
	for _, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// pauseBefore is how long to wait after the try that ended with err.
func pauseBefore(try int, err error) time.Duration {
	limit := min(firstPause<<(try-1), maxPause)
	return retryAfter(err) + rand.N(limit)
}

// retryAfter is the server's hint; zero if there is none.
func retryAfter(err error) time.Duration {
	var refused *store.Error
	if errors.As(err, &refused) || errors.As(storepb.FromStatus(err), &refused) {
		return refused.RetryAfter
	}
	return 0
}

// pause waits, and reports false if ctx ends or would end first.
func pause(ctx context.Context, d time.Duration) bool {
	went, _ := pauseUnless(ctx, d, nil)
	return went
}

// pauseUnless is pause, unless something else happens before, which woken tells.
func pauseUnless(ctx context.Context, d time.Duration, event <-chan struct{}) (went, woken bool) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false, false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-timer.C:
		return true, false
	case <-event:
		return false, true
	}
}
