package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/idemd/idemd/store"
)

// hotKeys are keys for which all callers compete. Whoever is granted one releases it.
type hotKeys struct {
	t    *testing.T
	keys []*hotKey
}

type hotKey struct {
	key store.Key

	mu sync.Mutex
	// holder is the attempt whose grant was answered and which has not sent its release.
	holder string
	// fences has every fence that was ever answered, and to which attempt.
	fences  map[int64]string
	newest  int64
	pending []visit
}

// visit is a claim, or with a fence a release, that got no answer.
type visit struct {
	attempt string
	fence   int64
}

func newHotKeys(t *testing.T, n int) *hotKeys {
	h := &hotKeys{t: t}
	for i := range n {
		key := store.Key{Namespace: store.DefaultNamespace, Scope: "kill9", ID: fmt.Sprintf("hot-%d", i)}
		h.keys = append(h.keys, &hotKey{key: key, fences: map[int64]string{}})
	}
	return h
}

func (h *hotKeys) grants() int {
	n := 0
	for _, k := range h.keys {
		n += len(k.fences)
	}
	return n
}

// visit claims one of the keys, and releases it if it is granted.
func (h *hotKeys) visit(s store.Store, rng *rand.Rand, attempt string) error {
	_, err := h.keys[rng.IntN(len(h.keys))].visit(s, attempt)
	return err
}

func (k *hotKey) visit(s store.Store, attempt string) (granted bool, err error) {
	k.mu.Lock()
	before := k.newest
	k.mu.Unlock()
	answer, err := s.Claim(context.Background(), k.claim(attempt))
	switch {
	case err != nil:
		k.leave(visit{attempt: attempt})
		return false, err
	case answer.Granted != nil:
		fence := answer.Granted.Fence
		if err := k.enter(attempt, fence, before); err != nil {
			return true, err
		}
		return true, k.release(s, attempt, fence)
	case answer.InProgress != nil:
		return false, nil
	default:
		return false, fmt.Errorf("%v: %+v, want granted or in progress", k.key, answer)
	}
}

func (k *hotKey) claim(attempt string) store.ClaimRequest {
	return store.ClaimRequest{Key: k.key, AttemptID: attempt, Lease: longLease}
}

// enter checks a grant: nobody else holds the key, and the fence is new and grew.
func (k *hotKey) enter(attempt string, fence, before int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holder != "" {
		return fmt.Errorf("%v: granted to %s while %s holds it", k.key, attempt, k.holder)
	}
	if fence <= before {
		return fmt.Errorf("%v: fence %d was given after %d", k.key, fence, before)
	}
	k.holder = attempt
	return k.give(attempt, fence)
}

// give remembers the fence. The caller holds the lock.
func (k *hotKey) give(attempt string, fence int64) error {
	if owner, taken := k.fences[fence]; taken && owner != attempt {
		return fmt.Errorf("%v: fence %d was given to %s and to %s", k.key, fence, owner, attempt)
	}
	k.fences[fence], k.newest = attempt, max(k.newest, fence)
	return nil
}

func (k *hotKey) release(s store.Store, attempt string, fence int64) error {
	k.mu.Lock()
	k.holder = "" // from here on, another one may be granted it
	k.mu.Unlock()
	_, err := s.Release(context.Background(),
		store.ReleaseRequest{Key: k.key, AttemptID: attempt, Fence: fence, Effect: store.EffectNone})
	if errors.Is(err, store.ErrStaleFence) {
		// It took effect, its answer was lost, and another one was granted the key before it was
		// sent again. Had that one been granted it earlier, enter would have said so.
		return nil
	}
	if err != nil {
		k.leave(visit{attempt: attempt, fence: fence})
	}
	return err
}

// leave remembers a visit whose last operation got no answer.
func (k *hotKey) leave(v visit) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending = append(k.pending, v)
}

// settle sends what got no answer again. Whoever still holds a key is told so, and
// releases it; afterwards the key is free.
func (h *hotKeys) settle(s store.Store) {
	for _, k := range h.keys {
		pending := k.pending
		k.pending = nil
		for _, v := range pending {
			if err := k.settle(s, v); err != nil {
				h.t.Errorf("%v: %v", k.key, err)
			}
		}
		granted, err := k.visit(s, fmt.Sprintf("check-%d", k.newest))
		if err != nil || !granted {
			h.t.Errorf("%v: granted %t, %v; want granted, as nobody holds the key", k.key, granted, err)
		}
	}
}

func (k *hotKey) settle(s store.Store, v visit) error {
	if v.fence != 0 {
		return k.release(s, v.attempt, v.fence)
	}
	answer, err := s.Claim(context.Background(), k.claim(v.attempt))
	if err != nil || answer.Granted == nil {
		return err // not granted: another one holds the key
	}
	if err := k.give(v.attempt, answer.Granted.Fence); err != nil {
		return err
	}
	return k.release(s, v.attempt, answer.Granted.Fence)
}
