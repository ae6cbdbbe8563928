package sqlstore

import (
	"context"
	"errors"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// write decides a task on the locked row of its key and writes what changes, in one
// transaction. Seen is the row that was found, nil if there was none. A new grant goes into
// the home bucket, everything else stays where it is.
func (s *Store) write(ctx context.Context, t *task, seen *row) (done bool, err error) {
	refusal, err := s.batches.writes.do(ctx, t, 0, &writing{s: s, task: t, seen: seen})
	if err != nil {
		return false, err
	}
	return true, refusal
}

// writeOperation is answered with the operation's refusal, if it is one.
type writeOperation = operation[*writing, error]

// runWrite carries out a write.
func (s *Store) runWrite(ops []*writeOperation) {
	op := ops[0] // a batch has one
	ctx, cancel := s.statementContext()
	defer cancel()
	w := op.query
	if w.snap, op.err = s.catalog.current(ctx); op.err != nil {
		return
	}
	w.ctx, w.sealed = ctx, s.seal.upTo()
	op.err = s.dialect.runTx(ctx, s.pool, func(tx pgx.Tx) (err error) {
		w.tx = tx
		op.answer, err = w.run()
		return err
	})
}

// writing is one transaction of write.
type writing struct {
	s    *Store
	ctx  context.Context
	tx   pgx.Tx
	task *task
	seen *row
	snap *snapshot
	// sealed is what the seal said before the transaction began: its snapshot may be as old as
	// that, and what ended since is not in it.
	sealed int64
	now    int64 // the transaction's
}

// run decides and writes. Refusal is the operation's answer, which may go with a write; err
// rolls everything back.
func (w *writing) run() (refusal, err error) {
	old, err := w.lock(w.seen)
	if err != nil {
		return nil, err
	}
	if err := w.s.clock.check(w.now); err != nil {
		return nil, err
	}
	if err := w.snap.check(w.now); err != nil {
		return nil, err
	}
	var rec *store.Record
	if old != nil {
		rec = old.rec
	}
	change, refusal := w.task.decideOn(rec, w.now, w.s.wall())
	if (change == store.Change{}) {
		return refusal, w.s.stand(w.ctx, w.tx)
	}
	return refusal, w.put(old, applied(old, w.task.digest, change, w.now))
}

// applied is the row after a change. Events go when the key begins a new life.
func applied(old *row, digest store.KeyDigest, change store.Change, now int64) *row {
	next := &row{digest: digest, rec: change.Record}
	if old != nil && !old.rec.Expired(timeOf(now)) {
		next.events = old.events
	}
	if next.rec == nil {
		next.rec = old.rec // an event is only ever about a record
	}
	if change.Event != nil {
		next.events = store.AddEvent(next.events, *change.Event)
	}
	return next
}

// lock locks the row and reads it again, or only the time if there was none.
func (w *writing) lock(seen *row) (*row, error) {
	if seen == nil {
		return nil, w.tx.QueryRow(w.ctx, "SELECT "+us(w.s.opts.Clock.Now)).Scan(&w.now)
	}
	var st stored
	targets := append(st.targets(), &w.now, &st.events)
	err := w.tx.QueryRow(w.ctx, w.snap.bucket(seen.bucket).lock, w.task.digest[:]).Scan(targets...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errAgain // it has moved
	}
	if err != nil {
		return nil, err
	}
	if seeded("decide-again") {
		return seen, nil
	}
	r, err := st.row(seen.bucket)
	if err != nil {
		return nil, corrupt(err)
	}
	return r, nil
}

// put writes the row where it belongs.
func (w *writing) put(old, next *row) error {
	home := bucketAt(w.task.tier, w.now)
	switch {
	case old != nil && !grants(old.rec, next.rec):
		return w.update(old.bucket, next, w.s.clock.floor(), math.MaxInt64)
	case old == nil:
		return w.insert(home, next, nil)
	case home.start < old.bucket.start:
		return errAgain // this clock is behind the one that put it there: never move it back
	case old.bucket == home:
		return w.update(home, next, max(home.start, w.s.clock.floor()), min(home.end(), w.snap.until()))
	default:
		return w.insert(home, next, old)
	}
}

// grants reports whether next is a new attempt's.
func grants(old, next *store.Record) bool {
	return old.Fence != next.Fence && next.AttemptID != ""
}

// update writes a row in place.
func (w *writing) update(bucket bucketID, next *row, lo, hi int64) error {
	return w.exec(w.snap.bucket(bucket).update, next, lo, hi)
}

// insert puts a row into home (6). Old, in an older bucket, becomes a marker.
func (w *writing) insert(home bucketID, next, old *row) error {
	if seeded("snapshot") {
		w.sealed = w.s.seal.upTo()
	}
	to, err := w.s.target(w.snap, home.tier, w.now, w.sealed)
	if err != nil {
		return err
	}
	guards := []any{to.lo, to.hi, w.s.opts.Timing.MaxStatement.Microseconds()}
	if old != nil {
		if err := one(w.tx.Exec(w.ctx, w.snap.bucket(old.bucket).move, append([]any{w.task.digest[:]}, guards...)...)); err != nil {
			return err
		}
	}
	if to.marked && !seeded("move-marker") && (old == nil || old.bucket != home.previous()) {
		args := append([]any{[][]byte{w.task.digest[:]}}, guards...)
		if _, err := w.tx.Exec(w.ctx, to.marker, args...); err != nil {
			return err
		}
	}
	err = w.exec(to.insert, next, to.lo, to.hi)
	if seeded("one-row") && errors.Is(err, errAgain) {
		return nil
	}
	return err
}

// exec runs a statement that writes a whole row under the guards of time.
func (w *writing) exec(text string, next *row, lo, hi int64) error {
	args, err := next.args()
	if err != nil {
		return err
	}
	return one(w.tx.Exec(w.ctx, text, append(args, lo, hi, w.s.opts.Timing.MaxStatement.Microseconds())...))
}
