package regiontest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// History is what callers in all regions asked for and were told. Its times are those of one
// clock, that of the test.
type History struct {
	begun time.Time

	mu    sync.Mutex
	calls []call
}

// NewHistory returns an empty one.
func NewHistory() *History { return &History{begun: time.Now()} }

// call is one operation and what its caller was told.
type call struct {
	From    string // the region it was called from
	Again   bool   // it may have been sent several times
	Op      op
	Key     store.Key
	Attempt string
	Fence   int64         // that was sent
	Lease   time.Duration // that was asked for
	Outcome string        // that was sent
	Effect  store.Effect

	Sent, Answered time.Duration // since the history began
	Err            error
	Told           answer
}

type op string

const (
	opClaim    op = "claim"
	opRenew    op = "renew"
	opComplete op = "complete"
	opRelease  op = "release"
	opLookup   op = "lookup"
)

// answer is what an operation without an error said. Fields that it does not have are zero.
type answer struct {
	Kind      kind
	Fence     int64
	Previous  int64
	Number    int
	Unsettled bool
	Since     time.Time // when it is unsettled
	Lapsed    bool
	State     store.State
	Outcome   string
	GrantedAt time.Time
	LeaseEnd  time.Time
	// Deadline is until when the holder may act, by the test's clock.
	Deadline time.Duration
	Served   store.Served
}

type kind string

const (
	granted    kind = "granted"
	inProgress kind = "in progress"
	completed  kind = "completed"
	unresolved kind = "unresolved"
	renewed    kind = "renewed"
	recorded   kind = "recorded"
	released   kind = "released"
	found      kind = "found"
)

// unknown says that the operation may or may not have taken effect, now or later.
func (c *call) unknown() bool {
	for _, sentinel := range []error{
		store.ErrUnavailable, store.ErrHomeUnreachable, store.ErrNamespaceMoving, store.ErrInternal, store.ErrWrongRegion,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(c.Err, sentinel) {
			return true
		}
	}
	return false
}

// nothingDone says that it took no effect and never will.
func (c *call) nothingDone() bool {
	return errors.Is(c.Err, store.ErrOverloaded) || errors.Is(c.Err, store.ErrQuota) || errors.Is(c.Err, store.ErrNamespaceUnknown)
}

func (c *call) String() string {
	text := fmt.Sprintf("%8.3f to %8.3f s, from %s: %s by %q", c.Sent.Seconds(), c.Answered.Seconds(), c.From, c.Op, c.Attempt)
	if c.Fence != 0 {
		text += fmt.Sprint(", fence ", c.Fence)
	}
	if c.Op == opRelease {
		text += fmt.Sprint(", effect ", c.Effect)
	}
	if c.Err != nil {
		return fmt.Sprintf("%s: refused: %v", text, c.Err)
	}
	t := c.Told
	return fmt.Sprintf("%s: %s, fence %d (before %d), number %d, state %d, lapsed %t, unsettled %t since %s, outcome %q, granted %s, lease to %s, home %s, epoch %d, forwarded %t",
		text, t.Kind, t.Fence, t.Previous, t.Number, t.State, t.Lapsed, t.Unsettled, t.Since.Format("05.000"), t.Outcome,
		t.GrantedAt.Format("05.000"), t.LeaseEnd.Format("05.000"), t.Served.Home, t.Served.Epoch, t.Served.Forwarded)
}

// Record returns s, as called from a region, and remembers what is asked of it. Again says that
// it sends what was not answered again by itself.
func (h *History) Record(from string, again bool, s store.Store) store.Store {
	return &recorder{history: h, from: from, again: again, store: s}
}

type recorder struct {
	history *History
	from    string
	again   bool
	store   store.Store
}

func (r *recorder) keep(c call, sent time.Time, err error, told answer) {
	c.From, c.Again = r.from, r.again
	c.Sent, c.Answered = sent.Sub(r.history.begun), time.Since(r.history.begun)
	c.Err = err
	if err == nil {
		c.Told = told
	}
	r.history.mu.Lock()
	defer r.history.mu.Unlock()
	r.history.calls = append(r.history.calls, c)
}

func (r *recorder) deadline(sent time.Time, left, held time.Duration) time.Duration {
	return sent.Sub(r.history.begun) + held + left
}

// Claim implements [store.Store].
func (r *recorder) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	sent := time.Now()
	got, err := r.store.Claim(ctx, req)
	told := answer{Served: got.Served}
	switch {
	case got.Granted != nil:
		g := got.Granted
		told = answer{
			Kind: granted, Fence: g.Fence, Previous: g.PreviousFence, Number: g.AttemptNumber, Unsettled: g.Unsettled, Since: g.UnsettledSince,
			GrantedAt: g.GrantedAt, LeaseEnd: g.LeaseExpiresAt, Deadline: r.deadline(sent, g.LeaseRemaining, g.HeldFor), Served: got.Served,
		}
	case got.Completed != nil:
		told.Kind, told.Fence, told.Outcome = completed, got.Completed.Fence, outcomeText(got.Completed.Outcome)
	case got.InProgress != nil:
		told.Kind, told.LeaseEnd = inProgress, got.InProgress.LeaseExpiresAt
	case got.Unresolved != nil:
		told.Kind, told.Fence = unresolved, got.Unresolved.Fence
	}
	r.keep(call{Op: opClaim, Key: req.Key, Attempt: req.AttemptID, Lease: req.Lease}, sent, err, told)
	return got, err
}

// Renew implements [store.Store].
func (r *recorder) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	sent := time.Now()
	got, err := r.store.Renew(ctx, req)
	r.keep(call{Op: opRenew, Key: req.Key, Attempt: req.AttemptID, Fence: req.Fence, Lease: req.Lease}, sent, err, answer{
		Kind: renewed, LeaseEnd: got.LeaseExpiresAt, Deadline: r.deadline(sent, got.LeaseRemaining, got.HeldFor), Served: got.Served,
	})
	return got, err
}

// Complete implements [store.Store].
func (r *recorder) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	sent := time.Now()
	got, err := r.store.Complete(ctx, req)
	r.keep(call{Op: opComplete, Key: req.Key, Attempt: req.AttemptID, Fence: req.Fence, Outcome: outcomeText(req.Outcome)}, sent, err,
		answer{Kind: recorded, Served: got.Served})
	return got, err
}

// Release implements [store.Store].
func (r *recorder) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	sent := time.Now()
	got, err := r.store.Release(ctx, req)
	r.keep(call{Op: opRelease, Key: req.Key, Attempt: req.AttemptID, Fence: req.Fence, Effect: req.Effect}, sent, err,
		answer{Kind: released, State: got.State, Served: got.Served})
	return got, err
}

// Lookup implements [store.Store].
func (r *recorder) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	sent := time.Now()
	got, err := r.store.Lookup(ctx, req)
	r.keep(call{Op: opLookup, Key: req.Key}, sent, err, answer{
		Kind: found, Fence: got.Fence, Number: got.AttemptNumber, Unsettled: got.Unsettled, Lapsed: got.Lapsed, State: got.State,
		Outcome: outcomeText(got.Outcome), GrantedAt: got.GrantedAt, LeaseEnd: got.LeaseExpiresAt, Served: got.Served,
	})
	return got, err
}

// outcomeText tells outcomes apart by all that they hold.
func outcomeText(o *store.Outcome) string {
	if o == nil {
		return ""
	}
	return fmt.Sprintf("%s %.8x", o.Body, o.Digest())
}
