package client

import (
	"context"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/store"
)

// A pending outcome is recorded in the background. Until it is, this process knows what the
// store does not: once the lease has ended, the store grants the key again, as unsettled.
type pending struct {
	at       pendingAt
	print    store.Fingerprint // of the request
	outcome  *store.Outcome
	since    time.Time
	passedOn atomic.Bool // a later attempt records it too
}

type pendingAt struct {
	store store.Store
	key   store.Key
}

// pendings are those of this process. The room of outcomes bounds them.
var pendings = struct {
	sync.Mutex
	count  atomic.Int64
	known  map[pendingAt]*pending
	asleep map[*pending]chan struct{} // closed when the store is heard again
}{known: map[pendingAt]*pending{}, asleep: map[*pending]chan struct{}{}}

// pendingOf has an ending known as long as it is not recorded. It is nil if it is no outcome.
func (x *execution) pendingOf(end *ending) *pending {
	if end.outcome == nil || !reflect.ValueOf(x.store).Comparable() {
		return nil
	}
	p := &pending{at: pendingAt{x.store, x.request.Key}, print: x.request.Fingerprint, outcome: end.outcome, since: time.Now()}
	pendings.Lock()
	defer pendings.Unlock()
	pendings.count.Add(1)
	pendings.known[p.at] = p
	return p
}

func (p *pending) forget() {
	if p == nil {
		return
	}
	pendings.Lock()
	defer pendings.Unlock()
	pendings.count.Add(-1)
	delete(pendings.asleep, p)
	if pendings.known[p.at] == p {
		delete(pendings.known, p.at)
	}
}

// recorded reports whether the outcome counts as recorded though this attempt's was refused.
func (p *pending) recorded(err error) bool { return p != nil && superseded(err) && p.passedOn.Load() }

// pendingWith returns the outcome of an earlier attempt at a key; nil if none is known.
func pendingWith(s store.Store, key store.Key) *pending {
	if pendings.count.Load() == 0 || !reflect.ValueOf(s).Comparable() {
		return nil
	}
	pendings.Lock()
	defer pendings.Unlock()
	return pendings.known[pendingAt{s, key}]
}

// pause is that between two sends. It is over soon once the store has answered something, but
// not for all who wait at once (L5).
func (p *pending) pause(ctx context.Context, d time.Duration) bool {
	if p == nil {
		return pause(ctx, d)
	}
	went, woken := pauseUnless(ctx, d, p.fallAsleep())
	if woken {
		return pause(ctx, firstBackgroundPause/2+rand.N(firstBackgroundPause))
	}
	return went
}

func (p *pending) fallAsleep() <-chan struct{} {
	woken := make(chan struct{})
	pendings.Lock()
	defer pendings.Unlock()
	pendings.asleep[p] = woken
	return woken
}

// answeredBy wakes whoever waits to record something in a store that answers again.
func answeredBy(s store.Store) {
	if pendings.count.Load() == 0 || !reflect.ValueOf(s).Comparable() {
		return
	}
	pendings.Lock()
	defer pendings.Unlock()
	for p, woken := range pendings.asleep {
		if p.at.store == s {
			close(woken)
			delete(pendings.asleep, p)
		}
	}
}

// finish completes a grant with the outcome of the attempt before, which is what this process
// knows of it, and makes a repeat of it.
func (x *execution) finish(ctx context.Context, answer store.ClaimAnswer, sent time.Time, p *pending) (store.ClaimAnswer, error) {
	p.passedOn.Store(true)
	acting := x.granted(ctx, answer.Granted, sent)
	recorded, err := x.settle(acting, ending{outcome: p.outcome})
	x.unstored = !recorded
	return store.ClaimAnswer{
		Completed:               &store.Completed{Outcome: p.outcome, Fence: answer.Granted.Fence, Age: time.Since(p.since)},
		FingerprintIncomparable: answer.FingerprintIncomparable,
	}, err
}
