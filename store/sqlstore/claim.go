package sqlstore

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store"
)

// Claim implements [store.Store].
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (answer store.ClaimAnswer, err error) {
	if err := req.Validate(); err != nil {
		return store.ClaimAnswer{}, err
	}
	err = s.inNamespace(ctx, req.Key.Namespace, func(ns *store.Namespace, until int64) (err error) {
		answer, err = s.claimUntil(ctx, until, ns, req)
		return err
	})
	return answer, err
}

// claimIn claims a key of a namespace that is not a stored one.
func (s *Store) claimIn(ctx context.Context, ns *store.Namespace, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return s.claimUntil(ctx, math.MaxInt64, ns, req)
}

// claimUntil claims a key. From the instant on the namespace is too old to be acted on.
func (s *Store) claimUntil(ctx context.Context, until int64, ns *store.Namespace, req store.ClaimRequest) (store.ClaimAnswer, error) {
	var answer store.ClaimAnswer
	t := newTask(req.Key, ns, until)
	t.decide = func(old *store.Record, now, wall time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideClaim(old, ns, req, now, wall)
		return change, err
	}
	if query, ok := newClaimQuery(ns, &req, s.clock.estimate(), s.wall()); ok {
		query.validUntil = min(query.validUntil, until)
		t.quick = func(ctx context.Context) (found, bool, error) {
			f, err := s.batches.claims[ns.Tier].do(ctx, &t, 0, query)
			return f, false, err
		}
	}
	if err := s.perform(ctx, t); err != nil {
		return store.ClaimAnswer{}, err
	}
	return answer, nil
}

// claimQuery is what the claim statement needs of a Claim: the record of a first grant, as
// intervals from its time.
type claimQuery struct {
	key, attempt          []byte
	fingerprint           store.Fingerprint
	lease, maxAttempt     int64
	lapsePolicy           int16
	retention             int64
	validFrom, validUntil int64
}

// newClaimQuery works out the grant of an absent key, by deciding it at about now. It says
// no if the claim statement cannot make that grant: then the row is decided upon and
// written by itself.
func newClaimQuery(ns *store.Namespace, req *store.ClaimRequest, now int64, wall time.Time) (claimQuery, bool) {
	at := timeOf(now)
	_, change, err := store.DecideClaim(nil, ns, *req, at, wall)
	rec := change.Record
	if err != nil || rec.Retention != ns.Retention {
		return claimQuery{}, false
	}
	q := claimQuery{
		key: req.Key.AppendEncoded(nil), attempt: []byte(req.AttemptID), fingerprint: req.Fingerprint,
		lease: rec.LeaseEnd.Sub(at).Microseconds(), maxAttempt: rec.AttemptLimit.Sub(at).Microseconds(),
		lapsePolicy: int16(rec.LapsePolicy), retention: rec.Retention.Microseconds(), validUntil: math.MaxInt64,
	}
	if !req.IntentTime.IsZero() {
		// In between, the intent is neither in the future nor too old.
		skew := ns.Skew()
		q.validFrom = req.IntentTime.Add(-skew).UnixMicro() + 1
		q.validUntil = req.IntentTime.Add(ns.RetentionSince(req.IntentTime.Add(-skew)) - skew).UnixMicro()
	}
	return q, true
}

type claimOperation = operation[claimQuery, found]

// runClaims carries out a batch of Claims: one statement grants what is nowhere, a second
// reads the others.
func (s *Store) runClaims(tier store.Tier, ops []*claimOperation) {
	ctx, cancel := s.statementContext()
	defer cancel()
	began := time.Now()
	apart(ops, func(ops []*claimOperation) error { return s.grantAbsent(ctx, tier, ops) })
	observe(s, ops, time.Since(began))
	s.readOthers(tier, ops)
}

// readOthers reads what the claim statement did not grant, and what further Claims of the
// granted keys find.
func (s *Store) readOthers(tier store.Tier, ops []*claimOperation) {
	var reads []*findOperation
	var others []*claimOperation
	for _, op := range ops {
		if op.err == nil && (!op.answer.granted || len(op.more) > 0) {
			others = append(others, op)
			reads = append(reads, &findOperation{digest: op.digest})
		}
	}
	if len(others) == 0 {
		return
	}
	s.runFinds(tier, reads)
	for i, op := range others {
		if !op.answer.granted {
			op.answer, op.err = reads[i].answer, reads[i].err
		}
		for _, more := range op.more {
			more.answer, more.err = reads[i].answer, reads[i].err
		}
	}
}

// grantAbsent runs the claim statement, and marks which operations were granted.
func (s *Store) grantAbsent(ctx context.Context, tier store.Tier, ops []*claimOperation) error {
	snap, err := s.catalog.current(ctx)
	if err != nil {
		return err
	}
	to, err := s.target(snap, tier, s.clock.estimate(), s.seal.upTo())
	if err != nil {
		return err
	}
	guards := []any{to.lo, to.hi, s.opts.Timing.MaxStatement.Microseconds()}
	text, args := to.claim, claimArgs(ops)
	if len(ops) == 1 {
		text, args = to.one, ops[0].query.args(&ops[0].digest)
	}
	grant := func(q querier) error { return s.grant(ctx, q, text, append(args, guards...), ops) }
	if !to.marked || seeded("claim-marker") {
		return grant(s.pool)
	}
	// In the window: one transaction, the marker first, whether or not it goes in (3).
	return s.dialect.runTx(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, to.marker, append([]any{digestsOf(ops)}, guards...)...); err != nil {
			return err
		}
		return grant(tx)
	})
}

// grant runs a claim statement.
func (s *Store) grant(ctx context.Context, q querier, text string, args []any, ops []*claimOperation) error {
	var at int64
	granted, err := byDigest(ctx, q, text, args, &at, &at)
	if err != nil {
		return err
	}
	for _, op := range ops {
		at, ok := granted[op.digest]
		if op.answer = (found{granted: ok, now: at}); ok {
			s.clock.saw(at)
		}
	}
	return nil
}

// args are the parameters of a single claim.
func (q *claimQuery) args(digest *store.KeyDigest) []any {
	return []any{
		digest[:], q.key, q.attempt, int64(q.fingerprint.Version), []byte(q.fingerprint.Digest), q.lease, q.maxAttempt,
		q.lapsePolicy, q.retention, q.validFrom, q.validUntil,
	}
}

// claimArgs are those of a batch, in the same order.
func claimArgs(ops []*claimOperation) []any {
	return []any{
		digestsOf(ops),
		column(ops, func(q *claimQuery) []byte { return q.key }),
		column(ops, func(q *claimQuery) []byte { return q.attempt }),
		column(ops, func(q *claimQuery) int64 { return int64(q.fingerprint.Version) }),
		column(ops, func(q *claimQuery) []byte { return []byte(q.fingerprint.Digest) }),
		column(ops, func(q *claimQuery) int64 { return q.lease }),
		column(ops, func(q *claimQuery) int64 { return q.maxAttempt }),
		column(ops, func(q *claimQuery) int16 { return q.lapsePolicy }),
		column(ops, func(q *claimQuery) int64 { return q.retention }),
		column(ops, func(q *claimQuery) int64 { return q.validFrom }),
		column(ops, func(q *claimQuery) int64 { return q.validUntil }),
	}
}

// one checks that a statement wrote exactly one row; if it did not, things are not as they
// were decided upon.
func one(tag pgconn.CommandTag, err error) error {
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() == 1:
		return nil
	case tag.RowsAffected() == 0:
		return errAgain
	}
	return fmt.Errorf("%d rows were written instead of one", tag.RowsAffected())
}
