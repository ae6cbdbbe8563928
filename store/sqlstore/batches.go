package sqlstore

import (
	"errors"
	"time"

	"github.com/idemd/idemd/store"
)

// batches are the coalescers of a store, by tier, because a statement is on one tier's tables.
type batches struct {
	claims                      map[store.Tier]*coalescer[claimQuery, found]
	finds                       map[store.Tier]*coalescer[struct{}, found]
	renews, completes, releases settleBatches
}

func (s *Store) newBatches() batches {
	b := batches{
		claims: map[store.Tier]*coalescer[claimQuery, found]{},
		finds:  map[store.Tier]*coalescer[struct{}, found]{},
		renews: settleBatches{}, completes: settleBatches{}, releases: settleBatches{},
	}
	for _, tier := range store.Tiers {
		b.claims[tier] = newCoalescer(s.opts, func(ops []*claimOperation) { s.runClaims(tier, ops) })
		b.finds[tier] = newCoalescer(s.opts, func(ops []*operation[struct{}, found]) { s.runFinds(tier, ops) })
		for batch, kind := range map[*settleBatches]settling{&b.renews: renewing, &b.completes: completing, &b.releases: releasing} {
			(*batch)[tier] = newCoalescer(s.opts, func(ops []*settleOperation) { s.runSettling(kind, tier, ops) })
		}
	}
	return b
}

// close returns when no batch is on its way any more.
func (b batches) close() {
	for _, tier := range store.Tiers {
		b.claims[tier].close()
		b.finds[tier].close()
		for _, batch := range []settleBatches{b.renews, b.completes, b.releases} {
			batch[tier].close()
		}
	}
}

// apart runs a batch, and sets its error. If the database refuses the whole statement because
// of one row, each operation is carried out by itself, so that none fails its neighbours.
func apart[Q, A any](ops []*operation[Q, A], run func([]*operation[Q, A]) error) {
	err := run(ops)
	if err == nil {
		return
	}
	var refusal *store.Error
	if len(ops) > 1 && faultOf(err) == faultRefused && !errors.As(err, &refusal) {
		for _, op := range ops {
			apart([]*operation[Q, A]{op}, run)
		}
		return
	}
	each(ops, func(op *operation[Q, A]) { op.err = err })
}

// observe tells of a batch.
func observe[Q, A any](s *Store, ops []*operation[Q, A], took time.Duration) {
	operations, bytes := 0, 0
	each(ops, func(op *operation[Q, A]) { operations, bytes = operations+1, bytes+op.bytes })
	s.opts.Observer.Committed(operations, bytes, took)
}
