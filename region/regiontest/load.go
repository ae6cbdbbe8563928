package regiontest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	// generation is how long new claims go to the same keys.
	generation = 700 * time.Millisecond
	// shortLease is that of keys whose holders may go away.
	shortLease = time.Second
	// patience is how long a caller waits for an answer.
	patience = 3 * time.Second
	// openAtMost is on how many keys a worker has an attempt.
	openAtMost = 20
	// settleWithin is how long what has no answer is sent again after the load.
	settleWithin = 20 * time.Second
)

// Load is callers that work on the same keys, from all regions: new ones, and ones that were
// ended long ago. What they were told is in the history.
type Load struct {
	history    *History
	seed       uint64
	namespaces []string
	entities   []string
	begun      time.Time
	attempts   atomic.Int64

	mu   sync.Mutex
	old  []store.Key
	open []string
}

// NewLoad returns a load on keys in these namespaces.
func NewLoad(h *History, seed uint64, namespaces ...string) *Load {
	return &Load{history: h, seed: seed, namespaces: namespaces, entities: []string{"", "eu-1", "us-1", "ap-1"}, begun: time.Now()}
}

// Open says of which calls nobody knows what became of them, though they were sent again long
// after the load.
func (l *Load) Open() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Work is one caller. It returns when ctx is over and everything it sent has an answer.
func (l *Load) Work(ctx context.Context, name string, s store.Store) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name))
	w := &worker{load: l, ctx: ctx, name: name, store: s, rng: rand.New(rand.NewPCG(l.seed, hash.Sum64())), open: map[store.Key]*attempt{}}
	for ctx.Err() == nil {
		w.step()
	}
	w.settle()
}

// worker is one caller. It never leaves a key of which it does not know where it stands,
// unless the key's leases are short.
type worker struct {
	load  *Load
	ctx   context.Context
	name  string
	store store.Store
	rng   *rand.Rand
	open  map[store.Key]*attempt
}

// attempt is one that has not ended.
type attempt struct {
	key    store.Key
	id     string
	fence  int64                           // 0: not granted yet
	ending func(ctx context.Context) error // that it has chosen
}

// pick is a key: mostly one of those that are new now, at times an old one.
func (w *worker) pick() store.Key {
	waiting := store.Key{}
	for key, a := range w.open {
		if a.fence != 0 && a.ending == nil {
			return key // holders do not tarry
		}
		waiting = key
	}
	if n := len(w.open); n > openAtMost || n > 0 && w.rng.IntN(2) == 0 {
		return waiting
	}
	l := w.load
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.old) > 0 && w.rng.IntN(4) == 0 {
		return l.old[w.rng.IntN(len(l.old))]
	}
	lease := "steady"
	if w.rng.IntN(3) == 0 {
		lease = "short"
	}
	n := w.rng.IntN(len(l.entities))
	return store.Key{
		Namespace: l.namespaces[w.rng.IntN(len(l.namespaces))],
		Scope:     "load",
		ID:        fmt.Sprintf("%s-%d-%d", lease, time.Since(l.begun)/generation, n),
		Entity:    l.entities[n],
	}
}

func short(key store.Key) bool { return strings.HasPrefix(key.ID, "short") }

func leaseOf(key store.Key) time.Duration {
	if short(key) {
		return shortLease
	}
	return LongLease
}

func (w *worker) step() {
	key := w.pick()
	a := w.open[key]
	switch {
	case a != nil:
		w.act(w.ctx, a)
	case w.rng.IntN(4) == 0:
		w.look(w.ctx, key)
	default:
		a = &attempt{key: key, id: fmt.Sprintf("%s-%d", w.name, w.load.attempts.Add(1))}
		w.open[key] = a
		w.act(w.ctx, a)
	}
}

func (w *worker) look(ctx context.Context, key store.Key) {
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := w.store.Lookup(patient, store.LookupRequest{Key: key})
	w.rest(ctx, err)
}

// act brings the attempt one step on, and forgets it when it has ended.
func (w *worker) act(ctx context.Context, a *attempt) {
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if a.fence == 0 {
		w.claim(patient, a)
		return
	}
	if a.ending == nil {
		w.hold(patient, a)
		if a.ending == nil { // it went away
			delete(w.open, a.key)
			return
		}
	}
	if err := a.ending(patient); isUnknown(err) {
		w.rest(ctx, err)
		return
	}
	w.ended(a)
}

// ended forgets an attempt; its key is an old one from then on.
func (w *worker) ended(a *attempt) {
	delete(w.open, a.key)
	w.load.mu.Lock()
	defer w.load.mu.Unlock()
	if w.rng.IntN(10) == 0 {
		w.load.old = append(w.load.old, a.key)
	}
}

func (w *worker) claim(ctx context.Context, a *attempt) {
	got, err := w.store.Claim(ctx, store.ClaimRequest{Key: a.key, AttemptID: a.id, Lease: leaseOf(a.key)})
	switch {
	case isUnknown(err):
		w.rest(w.ctx, err)
	case got.Granted != nil:
		a.fence = got.Granted.Fence
	default:
		delete(w.open, a.key)
	}
}

// hold does what holders do, and what those do who are not, and chooses an end.
func (w *worker) hold(ctx context.Context, a *attempt) {
	body := &store.Outcome{Body: []byte(a.id)}
	switch w.rng.IntN(6) {
	case 0:
		_, _ = w.store.Renew(ctx, store.RenewRequest{Key: a.key, AttemptID: a.id, Fence: a.fence, Lease: leaseOf(a.key)})
	case 1:
		_, _ = w.store.Complete(ctx, store.CompleteRequest{Key: a.key, AttemptID: a.id, Fence: a.fence - 1, Outcome: &store.Outcome{Body: []byte("forged")}})
	case 2:
		_, _ = w.store.Release(ctx, store.ReleaseRequest{Key: a.key, AttemptID: "forger", Fence: a.fence, Effect: store.EffectNone})
	}
	if short(a.key) && w.rng.IntN(3) == 0 {
		return
	}
	effect := store.EffectNone
	switch w.rng.IntN(4) {
	case 0, 1:
		a.ending = func(ctx context.Context) error {
			_, err := w.store.Complete(ctx, store.CompleteRequest{Key: a.key, AttemptID: a.id, Fence: a.fence, Outcome: body})
			return err
		}
		return
	case 2:
		effect = store.EffectUnknown
	}
	a.ending = func(ctx context.Context) error {
		_, err := w.store.Release(ctx, store.ReleaseRequest{Key: a.key, AttemptID: a.id, Fence: a.fence, Effect: effect})
		return err
	}
}

// rest waits a little after a call that was not answered.
func (w *worker) rest(ctx context.Context, err error) {
	if !isUnknown(err) {
		return
	}
	timer := time.NewTimer(time.Duration(20+w.rng.IntN(60)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// settle ends every attempt that has not ended.
func (w *worker) settle() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), settleWithin)
	defer cancel()
	w.ctx = ctx
	for ctx.Err() == nil && len(w.open) > 0 {
		for _, a := range w.open {
			w.act(ctx, a)
		}
	}
	w.load.mu.Lock()
	defer w.load.mu.Unlock()
	for _, a := range w.open {
		w.load.open = append(w.load.open, fmt.Sprintf("%s of %+v, fence %d", a.id, a.key, a.fence))
	}
}

func isUnknown(err error) bool {
	return err != nil && (&call{Err: err}).unknown() || errors.Is(err, store.ErrOverloaded)
}
