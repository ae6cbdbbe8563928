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
// poll, one per key however many wait, at most a second late. A Claim is decided by the
// store when it comes and whenever it is woken.
//
// When the wait is over and nothing has woken it, the answer is in progress without asking
// the store again, so that many waits which end together are no load: that was decided by
// the store within the call, and the lease is the one that the last poll saw. It is given
// before the context's deadline, the earlier the more Claims wait, so that all of them can
// still reach their callers.
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
	came := time.Now()
	wait, waiting := w.join(req.Key)
	if wait == nil {
		return w.Store.Claim(ctx, req)
	}
	defer w.leave(req.Key, wait)
	over := time.NewTimer(patience(ctx, req.Wait, waiting))
	defer over.Stop()
	for {
		// The signal is taken before the decision: what settles in between is not missed.
		settled := wait.signal()
		held := time.Since(came)
		answer, err := w.Store.Claim(ctx, req)
		if err != nil || answer.InProgress == nil {
			return heldFor(answer, held), err
		}
		wait.start(w, req, answer.InProgress)
		select {
		case <-settled:
		case <-over.C:
			return wait.refresh(answer), nil
		case <-w.closing:
			return wait.refresh(answer), nil
		case <-ctx.Done():
			return ClaimAnswer{}, ctx.Err()
		}
	}
}

// heldFor returns the answer with a grant that says that the Waiter held the request so long
// before the store got it: its holder would else take the wait for a part of the lease. A
// server under the Waiter counts from the receipt, which was earlier, so the longer of the
// two has both.
func heldFor(answer ClaimAnswer, held time.Duration) ClaimAnswer {
	if answer.Granted == nil || answer.Granted.HeldFor >= held {
		return answer
	}
	return answer.HeldLonger(held - answer.Granted.HeldFor)
}

// patience is how long a Claim may wait: what it asked for, but less than its context has
// left. The more wait the earlier each stops, 250 more of them 100 ms, so that those with
// one deadline are answered one after another and a busy machine can still do it.
func patience(ctx context.Context, wait time.Duration, waiting int) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return wait
	}
	left := time.Until(deadline)
	crowd := 100 * time.Millisecond * time.Duration(waiting/250)
	return min(wait, left-min(left/10, 100*time.Millisecond)-min(left/3, crowd))
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

// join adds a waiter to the key's watch, and says how many wait for any key; nil if it must
// not wait.
func (w *Waiter) join(key Key) (*watch, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.waiting >= w.options.MaxWaiting {
		return nil, w.waiting
	}
	joined := w.watches[key]
	if joined == nil {
		ctx, cancel := context.WithCancel(context.Background())
		joined = &watch{ctx: ctx, cancel: cancel, settled: make(chan struct{})}
		w.watches[key] = joined
	}
	joined.waiters++
	w.waiting++
	return joined, w.waiting
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
	epoch   int64 // by which the last Claim was sent
	// leaseEnd is the end of the holder's lease by the store's clock, as last seen, and
	// endsAt the instant of this process's clock at which it comes.
	leaseEnd, endsAt time.Time
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

// start notes the lease that a Claim was told of, and makes sure that one poll runs for the
// key.
func (h *watch) start(w *Waiter, req ClaimRequest, told *InProgress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch = req.Epoch
	h.leaseEnd, h.endsAt = told.LeaseExpiresAt, time.Now().Add(told.LeaseRemaining)
	if !h.polling {
		h.polling = true
		go h.poll(w, req.Key)
	}
}

func (h *watch) sentBy() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epoch
}

// renewed notes a lease end that a poll saw.
func (h *watch) renewed(end time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaseEnd, h.endsAt = end, h.endsAt.Add(end.Sub(h.leaseEnd))
}

// refresh returns the answer in progress with the lease as it is known now.
func (h *watch) refresh(answer ClaimAnswer) ClaimAnswer {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer.InProgress = inProgressUntil(h.leaseEnd, max(time.Until(h.endsAt), 0))
	return answer
}

// poll looks until the last waiter has left.
func (h *watch) poll(w *Waiter, key Key) {
	timer := time.NewTimer(h.pollInterval(w))
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-timer.C:
		}
		h.look(w, key)
		timer.Reset(h.pollInterval(w))
	}
}

// pollInterval is half a second to a second, or what is left of the lease if that is less.
func (h *watch) pollInterval(w *Waiter) time.Duration {
	interval := time.Duration((0.5 + w.options.Jitter()/2) * float64(time.Second))
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := time.Until(h.endsAt); left > 0 {
		interval = min(interval, left+time.Millisecond)
	}
	return interval
}

// look asks the store where the key stands, and wakes the waiters if no attempt holds it, or if
// the key lives elsewhere by now: their Claims are refused then, and sent where it lives. A
// store that cannot answer is asked again later.
func (h *watch) look(w *Waiter, key Key) {
	answer, err := w.Lookup(h.ctx, LookupRequest{Key: key, Epoch: h.sentBy()})
	switch {
	case err == nil && answer.State == StateInProgress && !answer.Lapsed:
		h.renewed(answer.LeaseExpiresAt)
	case err == nil || errors.Is(err, ErrKeyNotFound) || errors.Is(err, ErrWrongRegion):
		h.wake()
	}
}
