package sqlstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// settleQuery is what a batch of Renews, Completes or Releases needs of one of them.
type settleQuery struct {
	fence   int64
	attempt []byte
	until   int64 // see task
	// Of these one kind of batch uses some.
	lease                  int64
	outcome, outcomeDigest []byte
	ended                  []byte
}

// settled is what the statement did; done is false if the record must be looked at.
type settled struct {
	done bool
	now  int64
	at   int64 // the lease's end, or when the record expires
}

type settleOperation = operation[settleQuery, settled]

// settling is one kind of batch.
type settling struct {
	text func(*bucketTexts) string
	// further are the arrays behind digests, fences, attempts and untils.
	further func([]*settleOperation) []any
}

var (
	completing = settling{
		text: func(b *bucketTexts) string { return b.complete },
		further: func(ops []*settleOperation) []any {
			return []any{
				column(ops, func(q *settleQuery) []byte { return q.outcome }),
				column(ops, func(q *settleQuery) []byte { return q.outcomeDigest }),
			}
		},
	}
	renewing = settling{
		text: func(b *bucketTexts) string { return b.renew },
		further: func(ops []*settleOperation) []any {
			return []any{column(ops, func(q *settleQuery) int64 { return q.lease })}
		},
	}
	releasing = settling{
		text: func(b *bucketTexts) string { return b.release },
		further: func(ops []*settleOperation) []any {
			return []any{column(ops, func(q *settleQuery) []byte { return q.ended })}
		},
	}
)

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	var answer store.RenewAnswer // not the result: a write may go on after its caller gave up
	err := s.onKey(ctx, req.Key, req.Validate(), func(t *task, ns *store.Namespace) error {
		t.decide = func(old *store.Record, now, _ time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideRenew(old, ns, req, now)
			return change, err
		}
		lease := cmp.Or(req.Lease, ns.Lease)
		if lease <= ns.MaxLease && direct(ns, req.Epoch) {
			query := settleQuery{fence: req.Fence, attempt: []byte(req.AttemptID), lease: lease.Microseconds()}
			t.quick = s.quickly(s.batches.renews, *t, query, func(got settled) {
				end := timeOf(got.at)
				answer = store.RenewAnswer{LeaseExpiresAt: end, LeaseRemaining: end.Sub(timeOf(got.now))}
			})
		}
		return nil
	})
	if err != nil {
		return store.RenewAnswer{}, err
	}
	return answer, nil
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	var answer store.CompleteAnswer // not the result: a write may go on after its caller gave up
	err := s.onKey(ctx, req.Key, req.Validate(), func(t *task, ns *store.Namespace) error {
		t.decide = func(old *store.Record, now, _ time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideComplete(old, ns, req, now)
			return change, err
		}
		outcome, digest, err := outcomeArgs(req.Outcome, req.Outcome.Digest())
		if err != nil {
			return err
		}
		if req.Outcome.Size() <= ns.MaxOutcomeBytes && direct(ns, req.Epoch) {
			query := settleQuery{fence: req.Fence, attempt: []byte(req.AttemptID), outcome: outcome, outcomeDigest: digest}
			t.quick = s.quickly(s.batches.completes, *t, query, func(got settled) {
				answer = store.CompleteAnswer{CompletedAt: timeOf(got.now), ExpiresAt: timeOf(got.at)}
			})
		}
		return nil
	})
	if err != nil {
		return store.CompleteAnswer{}, err
	}
	return answer, nil
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	var answer store.ReleaseAnswer // not the result: a write may go on after its caller gave up
	err := s.onKey(ctx, req.Key, req.Validate(), func(t *task, ns *store.Namespace) error {
		t.decide = func(old *store.Record, now, _ time.Time) (change store.Change, err error) {
			answer, change, err = store.DecideRelease(old, ns, req, now)
			return change, err
		}
		if req.Effect == store.EffectNone && direct(ns, req.Epoch) {
			query := settleQuery{fence: req.Fence, attempt: []byte(req.AttemptID), ended: encodeEnded([]string{req.AttemptID})}
			t.quick = s.quickly(s.batches.releases, *t, query, func(settled) {
				answer = store.ReleaseAnswer{State: store.StateReleased}
			})
		}
		return nil
	})
	if err != nil {
		return store.ReleaseAnswer{}, err
	}
	return answer, nil
}

// Lookup implements [store.Store].
func (s *Store) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	var answer store.LookupAnswer // not the result: a write may go on after its caller gave up
	err := s.onKey(ctx, req.Key, req.Validate(), func(t *task, ns *store.Namespace) error {
		t.reads = true
		t.decide = func(old *store.Record, now, _ time.Time) (change store.Change, err error) {
			answer, err = store.DecideLookup(old, ns, req, now)
			return change, err
		}
		return nil
	})
	if err != nil {
		return store.LookupAnswer{}, err
	}
	return answer, nil
}

// onKey carries out an operation on a key, if the request is valid, as prepare says.
func (s *Store) onKey(ctx context.Context, key store.Key, invalid error, prepare func(*task, *store.Namespace) error) error {
	if invalid != nil {
		return invalid
	}
	return s.inNamespace(ctx, key.Namespace, func(ns *store.Namespace, until int64) error {
		t := newTask(key, ns, until)
		if err := prepare(&t, ns); err != nil {
			return err
		}
		return s.perform(ctx, t)
	})
}

func newTask(key store.Key, ns *store.Namespace, until int64) task {
	return task{key: key, digest: key.Digest(), tier: ns.Tier, until: until}
}

// direct reports whether the statements of the common path, which ask no transition function,
// may carry out what a holder has sent under an epoch.
func direct(ns *store.Namespace, epoch int64) bool {
	return ns.Placement.Epoch == epoch && ns.Placement.Move.Phase != store.MoveSealed || seeded("direct")
}

// quickly is the common path of an operation by the holder: its statement changes the row
// if it is in progress under this fence. If it is not, the row is read.
func (s *Store) quickly(batch settleBatches, t task, query settleQuery, answer func(settled)) func(context.Context) (found, bool, error) {
	query.until = t.until
	return func(ctx context.Context) (found, bool, error) {
		got, err := batch[t.tier].do(ctx, &t, len(query.outcome), query)
		if err != nil {
			return found{}, false, err
		}
		if got.done {
			answer(got)
			return found{}, true, nil
		}
		f, err := s.find(ctx, &t)
		return f, false, err
	}
}

type settleBatches map[store.Tier]*coalescer[settleQuery, settled]

// runSettling carries out a batch, one statement for each bucket that the fences name.
func (s *Store) runSettling(kind settling, tier store.Tier, ops []*settleOperation) {
	ctx, cancel := s.statementContext()
	defer cancel()
	byBucket := map[bucketID][]*settleOperation{}
	var buckets []bucketID
	for _, op := range ops {
		// Operations of one key may be under different fences; each goes by itself.
		all := append([]*settleOperation{op}, op.more...)
		op.more = nil
		for _, o := range all {
			b := bucketAt(tier, o.query.fence)
			if list := byBucket[b]; len(list) > 0 && list[len(list)-1].digest == o.digest {
				continue // not done: it is decided by what the first leaves behind
			}
			if byBucket[b] == nil {
				buckets = append(buckets, b)
			}
			byBucket[b] = append(byBucket[b], o)
		}
	}
	slices.SortFunc(buckets, func(a, b bucketID) int { return cmp.Compare(a.start, b.start) })
	for _, b := range buckets {
		began := time.Now()
		apart(byBucket[b], func(ops []*settleOperation) error { return s.settleIn(ctx, kind, b, ops) })
		observe(s, byBucket[b], time.Since(began))
	}
}

// settleIn runs the statement on one bucket.
func (s *Store) settleIn(ctx context.Context, kind settling, bucket bucketID, ops []*settleOperation) error {
	snap, err := s.catalog.current(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(snap.buckets[bucket.tier], bucket) {
		return nil // nothing is in it: nothing is done
	}
	args := []any{
		digestsOf(ops),
		column(ops, func(q *settleQuery) int64 { return q.fence }),
		column(ops, func(q *settleQuery) []byte { return q.attempt }),
		column(ops, func(q *settleQuery) int64 { return q.until }),
	}
	args = append(args, kind.further(ops)...)
	args = append(args, s.clock.floor(), s.opts.Timing.MaxStatement.Microseconds())
	got := settled{done: true}
	answers, err := byDigest(ctx, s.pool, kind.text(snap.bucket(bucket)), args, &got, &got.now, &got.at)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if op.answer = answers[op.digest]; op.answer.done {
			s.clock.saw(op.answer.now)
		}
	}
	return nil
}
