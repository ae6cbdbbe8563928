package sqlstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// batches are the coalescers of a store, by tier, because a statement is on one tier's tables.
type batches struct {
	claims                      map[store.Tier]*coalescer[claimQuery, found]
	finds                       map[store.Tier]*coalescer[struct{}, found]
	renews, completes, releases settleBatches
	// writes are transactions, each of one operation. They may not take all connections.
	writes *coalescer[*writing, error]
}

func (s *Store) newBatches() batches {
	b := batches{
		claims: map[store.Tier]*coalescer[claimQuery, found]{},
		finds:  map[store.Tier]*coalescer[struct{}, found]{},
		renews: settleBatches{}, completes: settleBatches{}, releases: settleBatches{},
	}
	shared, limit, atOnce := &room{}, s.opts.MaxBatch, batchesAtOnce
	if limit == 1 { // nothing to wait for: every connection works
		atOnce = s.opts.MaxConns
	}
	for _, tier := range store.Tiers {
		b.claims[tier] = newCoalescer(limit, atOnce, shared, func(ops []*claimOperation) { s.runClaims(tier, ops) })
		b.finds[tier] = newCoalescer(limit, atOnce, shared, func(ops []*findOperation) { s.runFinds(tier, ops) })
		for batch, kind := range map[*settleBatches]settling{&b.renews: renewing, &b.completes: completing, &b.releases: releasing} {
			(*batch)[tier] = newCoalescer(limit, atOnce, shared, func(ops []*settleOperation) { s.runSettling(kind, tier, ops) })
		}
	}
	b.writes = newCoalescer(1, max(1, s.opts.MaxConns/2), shared, s.runWrite)
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
	b.writes.close()
}

// column is an array with a value of each operation.
func column[Q, A, T any](ops []*operation[Q, A], of func(*Q) T) []T {
	values := make([]T, len(ops))
	for i, op := range ops {
		values[i] = of(&op.query)
	}
	return values
}

func digestsOf[Q, A any](ops []*operation[Q, A]) [][]byte {
	digests := make([][]byte, len(ops))
	for i, op := range ops {
		digests[i] = op.digest[:]
	}
	return digests
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// byDigest runs a batch's statement, and returns what it gives for each key: a digest, and
// columns that are read into parts of value.
func byDigest[T any](ctx context.Context, q querier, text string, args []any, value *T, parts ...any) (map[store.KeyDigest]T, error) {
	rows, err := q.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	var digest []byte
	values := map[store.KeyDigest]T{}
	_, err = pgx.ForEachRow(rows, append([]any{&digest}, parts...), func() error {
		values[store.KeyDigest(digest)] = *value
		return nil
	})
	return values, err
}

// apart runs a batch, and sets its error. If the database refuses the whole statement because
// of one row, or because somebody holds one locked, both halves are run by themselves, so that
// none fails its neighbours or has them wait for long.
func apart[Q, A any](ops []*operation[Q, A], run func([]*operation[Q, A]) error) {
	err := run(ops)
	switch {
	case err == nil:
	case len(ops) > 1 && ofOneRow(err):
		half := len(ops) / 2
		apart(ops[:half], run)
		apart(ops[half:], run)
	default:
		each(ops, func(op *operation[Q, A]) { op.err = err })
	}
}

// ofOneRow says that an error can be that of a single row of a batch.
func ofOneRow(err error) bool {
	return locked(err) || faultOf(err) == faultRefused && !isRefusal(err)
}

// observe tells of a batch.
func observe[Q, A any](s *Store, ops []*operation[Q, A], took time.Duration) {
	operations, bytes := 0, 0
	each(ops, func(op *operation[Q, A]) { operations, bytes = operations+1, bytes+op.bytes })
	s.opts.Observer.Committed(operations, bytes, took)
}
