package pebblestore

import (
	"context"
	"time"

	"github.com/idemd/idemd/store"
)

// onKey runs a transition on a key: at once if it repeats what is settled, else in the
// loop. Valid is the request's validation.
func (s *Store) onKey(ctx context.Context, c class, key *store.Key, bytes int, valid error, decide transition) error {
	if valid != nil {
		return valid
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.known.has(key.Namespace) {
		return store.NamespaceUnknown(key.Namespace)
	}
	digest := key.Digest()
	if done, refusal := s.repeat(key, digest, decide); done {
		return refusal
	}
	return s.do(ctx, c, key.Namespace, bytes, func(t *turn) error { return t.decide(key, digest, decide) })
}

// outcomeBytes is what an outcome adds to an operation in the queue.
func outcomeBytes(o *store.Outcome) int {
	if o == nil {
		return 0
	}
	return o.Size()
}

// Claim implements [store.Store]. It ignores Wait; see [store.Waiter].
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	var answer store.ClaimAnswer
	err := s.onKey(ctx, classClaim, &req.Key, 0, req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideClaim(old, ns, req, now, s.clock.Wall())
			return change, err
		})
	if err != nil {
		return store.ClaimAnswer{}, err // answer may still be written to
	}
	return answer, nil
}

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	var answer store.RenewAnswer
	err := s.onKey(ctx, classSettle, &req.Key, 0, req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideRenew(old, ns, req, now)
			return change, err
		})
	if err != nil {
		return store.RenewAnswer{}, err
	}
	return answer, nil
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	var answer store.CompleteAnswer
	err := s.onKey(ctx, classSettle, &req.Key, outcomeBytes(req.Outcome), req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideComplete(old, ns, req, now)
			return change, err
		})
	if err != nil {
		return store.CompleteAnswer{}, err
	}
	return answer, nil
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	var answer store.ReleaseAnswer
	err := s.onKey(ctx, classSettle, &req.Key, 0, req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideRelease(old, ns, req, now)
			return change, err
		})
	if err != nil {
		return store.ReleaseAnswer{}, err
	}
	return answer, nil
}

// Lookup implements [store.Store].
func (s *Store) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	var answer store.LookupAnswer
	err := s.onKey(ctx, classSettle, &req.Key, 0, req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
			answer, err = store.DecideLookup(old, ns, req, now)
			return change, err
		})
	if err != nil {
		return store.LookupAnswer{}, err
	}
	return answer, nil
}
