package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Waiter is a [Store] that makes [ClaimRequest.Wait] work over a store that answers at
// once. A waiting Claim is woken when a Complete or Release passes through the same
// Waiter; what happens elsewhere (another replica, a lapse, an operator) is seen by a
// poll, one per key however many wait, at most a second late. A woken Claim is decided
// again by the store, so waiting never changes an answer, only its time.
//
// When the wait is over and the key is still held, the answer is in progress: a little
// before the context's deadline, so that it still reaches the caller.
type Waiter struct {
	Store
	options WaiterOptions

	closing chan struct{}

	mu      sync.Mutex
	closed  bool
	waiting int
	watches map[Key]*watch
}

// WaiterOptions bounds a [Waiter].
type WaiterOptions struct {
	// MaxWaiting is how many Claims may wait at once; a further one is answered without
	// waiting. Zero: 100,000.
	MaxWaiting int
	// Jitter spreads the polls: it returns a number in [0, 1). Nil: math/rand/v2.
	Jitter func() float64
}

// NewWaiter returns a Waiter over inner. Call Close to end it.
func NewWaiter(inner Store, options WaiterOptions) *Waiter {
	setDefault(&options.MaxWaiting, 100_000)
	if options.Jitter == nil {
		options.Jitter = rand.Float64
	}
	return &Waiter{Store: inner, options: options, closing: make(chan struct{}), watches: map[Key]*watch{}}
}

// Close ends every wait at once, with the answer in progress, and lets no new one
// begin. The inner store stays open.
func (w *Waiter) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.closing)
	}
}

// Waiting returns how many Claims wait now.
func (w *Waiter) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

// Claim implements [Store].
func (w *Waiter) Claim(ctx context.Context, req ClaimRequest) (ClaimAnswer, error) {
	if req.Wait <= 0 {
		return w.Store.Claim(ctx, req)
	}
	if err := req.Validate(); err != nil {
		return ClaimAnswer{}, err
	}
	wait := w.join(req.Key)
	if wait == nil {
		return w.Store.Claim(ctx, req)
	}
	defer w.leave(req.Key, wait)
	over := time.NewTimer(patience(ctx, req.Wait))
	defer over.Stop()
	for {
		// The signal is taken before the decision: what settles in between is not missed.
		settled := wait.signal()
		answer, err := w.Store.Claim(ctx, req)
		if err != nil || answer.InProgress == nil {
			return answer, err
		}
		wait.start(w, req.Key, answer.InProgress.LeaseRemaining)
		select {
		case <-settled:
		case <-over.C:
			return w.Store.Claim(ctx, req)
		case <-w.closing:
			return answer, nil
		case <-ctx.Done():
			return ClaimAnswer{}, ctx.Err()
		}
	}
}

// patience is how long a Claim may wait: what it asked for, but a little less than its
// context has left.
func patience(ctx context.Context, wait time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return wait
	}
	left := time.Until(deadline)
	return min(wait, left-min(left/10, 100*time.Millisecond))
}

// Complete implements [Store] and wakes who waits for the key.
func (w *Waiter) Complete(ctx context.Context, req CompleteRequest) (CompleteAnswer, error) {
	answer, err := w.Store.Complete(ctx, req)
	if err == nil {
		w.wake(req.Key)
	}
	return answer, err
}

// Release implements [Store] and wakes who waits for the key.
func (w *Waiter) Release(ctx context.Context, req ReleaseRequest) (ReleaseAnswer, error) {
	answer, err := w.Store.Release(ctx, req)
	if err == nil {
		w.wake(req.Key)
	}
	return answer, err
}

func (w *Waiter) wake(key Key) {
	w.mu.Lock()
	watch := w.watches[key]
	w.mu.Unlock()
	if watch != nil {
		watch.wake()
	}
}

// join adds a waiter to the key's watch; nil if it must not wait.
func (w *Waiter) join(key Key) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.waiting >= w.options.MaxWaiting {
		return nil
	}
	joined := w.watches[key]
	if joined == nil {
		ctx, cancel := context.WithCancel(context.Background())
		joined = &watch{ctx: ctx, cancel: cancel, settled: make(chan struct{})}
		w.watches[key] = joined
	}
	joined.waiters++
	w.waiting++
	return joined
}

// leave takes a waiter off the key's watch; the last one ends it.
func (w *Waiter) leave(key Key, left *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
	left.waiters--
	if left.waiters == 0 {
		delete(w.watches, key)
		left.cancel()
	}
}

// watch is what all waiters of one key share.
type watch struct {
	ctx     context.Context // ends with the last waiter
	cancel  context.CancelFunc
	waiters int // guarded by Waiter.mu

	mu      sync.Mutex
	settled chan struct{} // closed and replaced at every wake
	polling bool
}

// signal returns a channel that is closed at the next wake.
func (h *watch) signal() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settled
}

func (h *watch) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.settled)
	h.settled = make(chan struct{})
}

// start makes sure that one poll runs for the key.
func (h *watch) start(w *Waiter, key Key, lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.polling {
		h.polling = true
		go h.poll(w, key, lease)
	}
}

// poll wakes the waiters whenever the key is not held any more, until the last has left.
func (h *watch) poll(w *Waiter, key Key, lease time.Duration) {
	timer := time.NewTimer(w.pollInterval(lease))
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-timer.C:
		}
		if !w.held(h.ctx, key) {
			h.wake()
		}
		timer.Reset(w.pollInterval(0))
	}
}

// pollInterval is half a second to a second, or what is left of the lease if that is
// less.
func (w *Waiter) pollInterval(lease time.Duration) time.Duration {
	interval := time.Duration((0.5 + w.options.Jitter()/2) * float64(time.Second))
	if lease > 0 {
		interval = min(interval, lease+time.Millisecond)
	}
	return interval
}

// held reports whether an attempt holds the key. A store that cannot answer is asked
// again later.
func (w *Waiter) held(ctx context.Context, key Key) bool {
	answer, err := w.Lookup(ctx, LookupRequest{Key: key})
	if err != nil {
		return !errors.Is(err, ErrKeyNotFound)
	}
	return answer.State == StateInProgress && !answer.Lapsed
}
