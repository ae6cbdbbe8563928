package client

import (
	"context"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// openSilence is how long a store that was asked may say nothing before a method acts without a
// guard for that: a few round trips on the longest way there is. Less proves nothing.
const openSilence = 500 * time.Millisecond

// leastPatience is for a store that may be back.
const leastPatience = time.Second

// quiet is since when a guard's store owes an answer, and has not said anything at all. What
// was asked and given up counts: else a silent store would never be one for callers with short
// deadlines.
type quiet struct {
	mu      sync.Mutex
	since   time.Time // zero: it owes nothing
	probing bool
}

// asked notes that an answer is due from then on.
func (q *quiet) asked(due time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.since.IsZero() || due.Before(q.since) {
		q.since = due
	}
}

// answered notes how an operation ended. A refusal is an answer as well.
func (q *quiet) answered(err error) {
	if err != nil && (isContextError(err) || isAny(err, store.ErrUnavailable) && !isAny(err, store.ErrNoHome)) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.since = time.Time{}
}

// left is how much longer the store may say nothing.
func (q *quiet) left() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.since.IsZero() {
		return openSilence
	}
	return openSilence - time.Since(q.since)
}

// patience is how long to wait for an answer where nobody acts without one: a store that has said
// nothing for that long is not waited for as long by each that comes after.
func (q *quiet) patience() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.since.IsZero() {
		return claimTimeout
	}
	return min(max(claimTimeout-time.Since(q.since), leastPatience), claimTimeout)
}

// orGiveUp gives a claim up that the caller has waited for long enough, if the store is silent.
func (q *quiet) orGiveUp(after time.Duration, giveUp func()) *time.Timer {
	return time.AfterFunc(max(after, q.left()), func() {
		if q.left() <= 0 {
			giveUp()
		}
	})
}

// probe asks in the background, as nobody waits long enough for a store that is far away to be
// heard again.
func (q *quiet) probe(ctx context.Context, from store.Store, key store.Key) {
	if !q.beginProbe() {
		return
	}
	began := releases.run(0, func() {
		defer q.endProbe()
		ctx, cancel := context.WithTimeout(onItsOwn(ctx), recordTimeout)
		defer cancel()
		_, err := from.Lookup(ctx, store.LookupRequest{Key: key})
		q.answered(err)
	})
	if !began {
		q.endProbe()
	}
}

func (q *quiet) beginProbe() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	begins := !q.probing
	q.probing = true
	return begins
}

func (q *quiet) endProbe() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.probing = false
}
