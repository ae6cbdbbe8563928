package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/tap"

	"github.com/idemd/idemd/store"
)

// How long a backend has to answer when the caller set no deadline, or a later one.
const (
	maxStoreTime    = 10 * time.Second
	maxOperatorTime = 30 * time.Second // some of what operators ask for reads many records
)

// received notes when a call arrived, as soon as its headers are read.
func received(ctx context.Context, _ *tap.Info) (context.Context, error) {
	return context.WithValue(ctx, receiptKey{}, time.Now()), nil
}

type receiptKey struct{}

// heldUntil is how long before t the call of ctx arrived; zero if it did not come over
// gRPC.
func heldUntil(ctx context.Context, t time.Time) time.Duration {
	at, ok := ctx.Value(receiptKey{}).(time.Time)
	if !ok {
		return 0
	}
	return t.Sub(at)
}

// asking is how the server asks its backend: it measures how long that takes, gives up a
// little before the caller would, so that the caller is told that the store is
// unavailable, and adds to HeldFor.
//
// HeldFor grows by how long the request was in the server's hands before the backend got
// it; it waited for another attempt, say. A holder adds HeldFor to the instant at which
// it sent the request, so too much of it would let the holder act after its lease. That
// is why the time until the backend's answer does not count: part of it comes after the
// decision. What the backend knows of the time before its decision it puts in itself.
type asking struct {
	store.Backend
	metrics *Metrics
}

// ask asks the backend once.
func ask[R, A any](ctx context.Context, m *Metrics, op operation, req R, method func(context.Context, R) (A, error), start time.Time) (A, error) {
	bounded := &lazyDeadline{Context: ctx, deadline: start.Add(storeTime(ctx, op, start))}
	defer bounded.cancel()
	answer, err := method(bounded, req)
	m.store[op].Observe(time.Since(start).Seconds())
	if err != nil && bounded.Err() != nil && ctx.Err() == nil && errors.Is(err, bounded.Err()) {
		err = &store.Error{
			Sentinel: store.ErrUnavailable,
			Detail:   "the store did not answer in time; " + advice(op),
			Cause:    err,
		}
	}
	return answer, err
}

// lazyDeadline is a context with a deadline whose timer runs only once somebody waits for
// it: most repeats are answered before anybody does.
type lazyDeadline struct {
	context.Context
	deadline time.Time

	mu    sync.Mutex
	timed context.Context // nil until Done is called
	stop  context.CancelFunc
}

func (c *lazyDeadline) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *lazyDeadline) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.stop = context.WithDeadline(c.Context, c.deadline)
	}
	return c.timed.Done()
}

func (c *lazyDeadline) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.timed != nil:
		return c.timed.Err()
	case c.Context.Err() != nil:
		return c.Context.Err()
	case !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

func (c *lazyDeadline) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
}

// storeTime is how long a backend has to answer: a little less than the caller waits.
func storeTime(ctx context.Context, op operation, start time.Time) time.Duration {
	most := maxStoreTime
	if op.isOperators() {
		most = maxOperatorTime
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return most
	}
	left := deadline.Sub(start)
	return min(left-min(left/10, 100*time.Millisecond), most)
}

// advice is what to do when it is not known what became of the operation.
func advice(op operation) string {
	if op.isOperators() {
		return "look whether it was done before you send it again"
	}
	return "send it again with the same attempt id"
}

// askFor is ask for an operation that does nothing to what it passes on.
func askFor[R, A any](ctx context.Context, a *asking, op operation, req R, method func(context.Context, R) (A, error)) (A, error) {
	return ask(ctx, a.metrics, op, req, method, time.Now())
}

// Claim implements [store.Store].
func (a *asking) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	start := time.Now()
	answer, err := ask(ctx, a.metrics, opClaim, req, a.Backend.Claim, start)
	return answer.HeldLonger(heldUntil(ctx, start)), err
}

// Renew implements [store.Store].
func (a *asking) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	start := time.Now()
	answer, err := ask(ctx, a.metrics, opRenew, req, a.Backend.Renew, start)
	if err == nil {
		answer.HeldFor += heldUntil(ctx, start)
	}
	return answer, err
}

// Complete implements [store.Store].
func (a *asking) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	return askFor(ctx, a, opComplete, req, a.Backend.Complete)
}

// Release implements [store.Store].
func (a *asking) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	return askFor(ctx, a, opRelease, req, a.Backend.Release)
}

// Lookup implements [store.Store].
func (a *asking) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	return askFor(ctx, a, opLookup, req, a.Backend.Lookup)
}
