package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// load is many callers that remember every answer they got. Each caller has keys of its
// own, of which it knows exactly what state they must be in; all callers also compete
// for a few contended keys.
type load struct {
	t            *testing.T
	callers      []*caller
	hot          *hotKeys
	acknowledged atomic.Int64
	// over ends a burst whose callers may never miss an answer.
	over atomic.Bool
}

func newLoad(t *testing.T, seed uint64, callers int) *load {
	l := &load{t: t, hot: newHotKeys(t, 4)}
	for i := range callers {
		l.callers = append(l.callers, &caller{
			load: l, name: fmt.Sprintf("caller-%d", i), rng: rand.New(rand.NewPCG(seed, uint64(i)+1)),
		})
	}
	return l
}

// burst lets all callers work until the server is gone. After so many acknowledged
// operations, kill is called.
func (l *load) burst(s store.Store, operations int64, kill func()) {
	l.over.Store(false)
	killAt := l.acknowledged.Load() + operations
	acknowledge := func() {
		if l.acknowledged.Add(1) == killAt {
			kill()
		}
	}
	var wg sync.WaitGroup
	for _, c := range l.callers {
		wg.Go(func() {
			if !c.work(s, acknowledge) {
				kill() // it has seen a wrong answer: the others need not go on
			}
		})
	}
	wg.Wait()
}

// verify checks every caller's key, and settles what was in flight at the kill.
func (l *load) verify(b backend) {
	l.hot.settle(b)
	var wg sync.WaitGroup
	for _, c := range l.callers {
		wg.Go(func() {
			if c.now != nil {
				c.now.verify(l.t, b)
			}
			for _, k := range c.finished[c.verified:] {
				k.verify(l.t, b)
			}
			c.verified = len(c.finished)
		})
	}
	wg.Wait()
}

// verifyDone checks once more every key that was ever finished.
func (l *load) verifyDone(b backend) {
	var wg sync.WaitGroup
	for _, c := range l.callers {
		wg.Go(func() {
			for _, k := range c.finished {
				k.verify(l.t, b)
			}
		})
	}
	wg.Wait()
}

func (l *load) keys() int {
	n := 0
	for _, c := range l.callers {
		n += len(c.finished)
	}
	return n
}

// backend is what the client offers.
type backend interface {
	store.Store
	store.Records
}

// caller works on one key of its own at a time.
type caller struct {
	load     *load
	name     string
	rng      *rand.Rand
	serial   int
	now      *ownKey
	finished []*ownKey
	verified int
}

// work returns when the server is gone or the burst is over, and false after a wrong answer.
func (c *caller) work(s store.Store, acknowledge func()) bool {
	for !c.load.over.Load() {
		if c.rng.IntN(5) == 0 {
			c.serial++
			switch err := c.load.hot.visit(s, c.rng, fmt.Sprintf("%s-%d", c.name, c.serial)); {
			case errors.Is(err, store.ErrUnavailable):
				return true
			case err != nil:
				c.load.t.Errorf("%s: %v", c.name, err)
				return false
			}
			acknowledge()
		}
		if c.now == nil {
			c.serial++
			c.now = &ownKey{key: store.Key{
				Namespace: store.DefaultNamespace, Scope: "kill9", ID: fmt.Sprintf("%s-%d", c.name, c.serial),
			}}
		}
		switch err := c.now.step(s, c.rng); {
		case errors.Is(err, store.ErrUnavailable):
			return true
		case err != nil:
			c.load.t.Errorf("%v: %v", c.now.key, err)
			return false
		}
		acknowledge()
		if c.now.completed && c.rng.IntN(2) == 0 {
			c.finished = append(c.finished, c.now)
			c.now = nil
		}
	}
	return true
}

// ownKey is a key that one caller uses alone, and what it was told about it.
type ownKey struct {
	key      store.Key
	attempts int

	// exists, held, completed: the state by the last acknowledged operation. Not held
	// and not completed: released, or lapsed if unsettled.
	exists, held, completed bool
	unsettled               bool
	attempt                 string
	fence                   int64
	number                  int
	leaseEnd                time.Time
	outcome                 *store.Outcome

	// pending is the operation that the kill left without an answer.
	pending string
	// newAttempt and newOutcome are what it sent.
	newAttempt string
	newOutcome *store.Outcome
}

// longLease never lapses while the test runs.
const longLease = 15 * time.Minute

// step sends one operation that fits the state, and checks its answer.
func (k *ownKey) step(s store.Store, rng *rand.Rand) error {
	switch {
	case k.completed:
		return k.replay(s)
	case !k.held:
		k.attempts++
		k.newAttempt = fmt.Sprintf("attempt-%d", k.attempts)
		return k.try("claim", func() error { return k.claim(s) })
	}
	switch rng.IntN(8) {
	case 0:
		return k.try("renew", func() error { return k.renew(s) })
	case 1:
		return k.claimAgain(s)
	case 2:
		return k.rival(s)
	case 3:
		return k.try("release none", func() error { return k.release(s, store.EffectNone) })
	case 4:
		return k.try("release unknown", func() error { return k.release(s, store.EffectUnknown) })
	default:
		k.newOutcome = randomOutcome(rng)
		return k.try("complete", func() error { return k.complete(s) })
	}
}

// try remembers the operation as pending if it got no answer.
func (k *ownKey) try(name string, operation func() error) error {
	k.pending = name
	err := operation()
	if err == nil {
		k.pending = ""
	}
	return err
}

func (k *ownKey) claimRequest(attempt string) store.ClaimRequest {
	return store.ClaimRequest{Key: k.key, AttemptID: attempt, Lease: longLease}
}

func (k *ownKey) claim(s store.Store) error {
	answer, err := s.Claim(context.Background(), k.claimRequest(k.newAttempt))
	switch g := answer.Granted; {
	case err != nil:
		return err
	case g == nil:
		return fmt.Errorf("claim: %+v, want granted", answer)
	case g.Fence <= k.fence:
		return fmt.Errorf("claim: fence %d after %d", g.Fence, k.fence)
	case g.AttemptNumber != k.number+1:
		return fmt.Errorf("claim: attempt number %d after %d", g.AttemptNumber, k.number)
	case g.Unsettled != k.unsettled:
		return fmt.Errorf("claim: unsettled %t, want %t", g.Unsettled, k.unsettled)
	default:
		k.exists, k.held = true, true
		k.attempt, k.fence, k.number, k.leaseEnd = k.newAttempt, g.Fence, g.AttemptNumber, g.LeaseExpiresAt
		return nil
	}
}

func (k *ownKey) claimAgain(s store.Store) error {
	answer, err := s.Claim(context.Background(), k.claimRequest(k.attempt))
	if err == nil && (answer.Granted == nil || answer.Granted.Fence != k.fence) {
		return fmt.Errorf("claim sent again: %+v, want granted with fence %d", answer, k.fence)
	}
	return err
}

func (k *ownKey) rival(s store.Store) error {
	answer, err := s.Claim(context.Background(), k.claimRequest("a rival"))
	if err == nil && answer.InProgress == nil {
		return fmt.Errorf("a rival's claim: %+v, want in progress", answer)
	}
	return err
}

func (k *ownKey) renew(s store.Store) error {
	answer, err := s.Renew(context.Background(),
		store.RenewRequest{Key: k.key, AttemptID: k.attempt, Fence: k.fence, Lease: longLease})
	if err != nil {
		return err
	}
	if answer.LeaseExpiresAt.Before(k.leaseEnd) {
		return fmt.Errorf("renew: lease end %v, before it %v", answer.LeaseExpiresAt, k.leaseEnd)
	}
	k.leaseEnd = answer.LeaseExpiresAt
	return nil
}

func (k *ownKey) release(s store.Store, effect store.Effect) error {
	_, err := s.Release(context.Background(),
		store.ReleaseRequest{Key: k.key, AttemptID: k.attempt, Fence: k.fence, Effect: effect})
	if err == nil {
		k.released(effect)
	}
	return err
}

// released is the table's Release: unknown is never turned into nothing happened.
func (k *ownKey) released(effect store.Effect) {
	k.held = false
	k.unsettled = k.unsettled || effect == store.EffectUnknown
}

func (k *ownKey) complete(s store.Store) error {
	_, err := s.Complete(context.Background(),
		store.CompleteRequest{Key: k.key, AttemptID: k.attempt, Fence: k.fence, Outcome: k.newOutcome})
	if err == nil {
		k.finish()
	}
	return err
}

func (k *ownKey) finish() {
	k.held, k.unsettled, k.completed, k.outcome = false, false, true, k.newOutcome
}

func (k *ownKey) replay(s store.Store) error {
	answer, err := s.Claim(context.Background(), k.claimRequest("a repeat"))
	if err == nil && (answer.Completed == nil || !sameOutcome(answer.Completed.Outcome, k.outcome)) {
		return fmt.Errorf("repeat: %+v, want completed with %v", answer, k.outcome)
	}
	return err
}

// verify checks that the store has all that was acknowledged, and of the pending
// operation all or nothing; then the state is settled again.
func (k *ownKey) verify(t *testing.T, b backend) {
	if k.pending != "" {
		k.settle(t, b)
	}
	inspection, err := b.InspectRecord(context.Background(), k.key)
	if errors.Is(err, store.ErrKeyNotFound) && !k.exists {
		return
	}
	if err != nil {
		t.Errorf("%v: inspect: %v; want what was acknowledged: %+v", k.key, err, k)
		return
	}
	if problem := k.compare(inspection); problem != "" {
		t.Errorf("%v: %s\nstored:       %+v\nacknowledged: %+v", k.key, problem, inspection.Record, k)
		return
	}
	if k.held {
		if err := k.claimAgain(b); err != nil {
			t.Errorf("%v: %v", k.key, err)
		}
	}
}

func (k *ownKey) compare(i store.Inspection) string {
	r := i.Record
	lapsed := r.Lapsed(i.Now)
	switch {
	case !k.exists:
		return "there is a record, but no claim was answered or is pending"
	case r.Fence != k.fence || r.AttemptNumber != k.number:
		return "another fence or attempt number"
	case k.completed != (r.State == store.StateCompleted):
		return "another state"
	case k.completed && !sameOutcome(r.Outcome, k.outcome):
		return "another outcome"
	case k.held != (r.State == store.StateInProgress && !lapsed):
		return "another state"
	case k.held && r.LeaseEnd.Before(k.leaseEnd):
		return "a shorter lease"
	case !k.held && !k.completed && k.unsettled != lapsed:
		return "what is unknown and what did not happen are mixed up"
	}
	return ""
}

// settle finds out whether the pending operation took effect, and takes that as its answer.
func (k *ownKey) settle(t *testing.T, b backend) {
	pending := k.pending
	k.pending = ""
	i, err := b.InspectRecord(context.Background(), k.key)
	if err != nil {
		return // verify judges it
	}
	r := i.Record
	switch {
	case pending == "claim" && r.Fence != k.fence:
		// It took effect; sending it again must give the same grant.
		if err := k.claim(b); err != nil {
			t.Errorf("%v: pending claim sent again: %v", k.key, err)
		} else if k.fence != r.Fence {
			t.Errorf("%v: pending claim sent again: fence %d, stored was %d", k.key, k.fence, r.Fence)
		}
	case pending == "complete" && r.State == store.StateCompleted:
		k.finish()
	case pending == "release none" && (r.State == store.StateReleased || r.Lapsed(i.Now)):
		k.released(store.EffectNone)
	case pending == "release unknown" && r.Lapsed(i.Now):
		k.released(store.EffectUnknown)
	}
}

func randomOutcome(rng *rand.Rand) *store.Outcome {
	body := make([]byte, rng.IntN(2000))
	for i := range body {
		body[i] = byte(rng.Uint32())
	}
	o := &store.Outcome{Body: body, BodyType: "application/octet-stream"}
	if rng.IntN(4) == 0 {
		o.Status = []byte{8, 5} // NOT_FOUND
		o.Header = []store.MetadataEntry{{Name: "x-request-cost", Value: []byte{0, 255, 1}}}
	}
	return o
}

func sameOutcome(a, b *store.Outcome) bool {
	return a != nil && b != nil &&
		bytes.Equal(a.Body, b.Body) && bytes.Equal(a.Status, b.Status) && a.BodyType == b.BodyType &&
		a.Digest() == b.Digest() && len(a.Header) == len(b.Header) &&
		(len(a.Header) == 0 || reflect.DeepEqual(a.Header, b.Header))
}
