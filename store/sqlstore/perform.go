package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// decision decides an operation on what is stored for its key, old, which is nil if nothing
// is. It is called again whenever that has changed, and keeps its last answer.
type decision func(old *store.Record, now, wall time.Time) (store.Change, error)

// task is one operation on a key.
type task struct {
	key    store.Key
	digest store.KeyDigest
	tier   store.Tier
	// until is the instant from which on, by the database's clock, nothing is decided by the
	// copy of the namespace that decide has (11).
	until  int64
	decide decision
	// quick is the statement of the common path; nil if there is none. It returns what it
	// found if it did not settle the matter.
	quick func(context.Context) (f found, done bool, err error)
	// once says that the operation must not be sent again if it may have taken effect,
	// because a repeat would not be known as one.
	once bool
	// reads says that it changes nothing.
	reads bool

	refusal error // the last decision's
}

// decideOn decides the task on a record that was read at now, by the database's clock.
func (t *task) decideOn(rec *store.Record, now int64, wall time.Time) (store.Change, error) {
	at := decidedAt(rec, now)
	if at.UnixMicro() >= t.until && !seeded("old-namespace") {
		return store.Change{}, errOldCopy
	}
	return t.decide(rec, at, wall)
}

// perform carries out a task (5): the quick statement; then what the rows say; then, if that
// is to change something, a transaction. Whatever may have taken effect is found again by its
// attempt id, as any repeat is.
func (s *Store) perform(ctx context.Context, t task) error {
	if err := s.closed(); err != nil {
		return err
	}
	began := time.Now()
	err := s.carryOut(ctx, &t)
	if s.ending.Err() == nil {
		now := time.Now()
		s.troubles.note(t.tier, err, now.Sub(began), s.opts.Timing.MaxStatement, now)
	}
	return err
}

func (s *Store) carryOut(ctx context.Context, t *task) error {
	var (
		last    error
		unknown bool // a try may have taken effect
	)
	for n := range tries {
		if err := backoff(ctx, n); err != nil {
			return err
		}
		done, err := s.try(ctx, *t)
		if done {
			return err
		}
		switch faultOf(err) {
		case faultRefused:
			return s.refused(t, err, unknown)
		case faultGone:
			if !errors.Is(err, errOldCopy) {
				s.catalog.kick()
			}
			err = errors.Join(err, s.catalog.refresh(ctx))
		case faultUnknown:
			unknown = true
			if t.once || ctx.Err() != nil {
				return s.gaveUp(ctx, t, err, unknown)
			}
		}
		if (locked(err) || incomplete(err)) && t.decide != nil {
			// A transaction waits for the lock, without neighbours; and what is recorded is read where
			// nothing can be granted.
			t.quick = nil
		}
		last = err
	}
	return s.gaveUp(ctx, t, last, unknown)
}

// gaveUp is the answer of an operation that was not carried out, or of which that is not known.
func (s *Store) gaveUp(ctx context.Context, t *task, err error, unknown bool) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return t.unavailable(err, unknown)
}

// unavailable is the refusal of the task. Unknown says that a try may have taken effect.
func (t *task) unavailable(err error, unknown bool) error {
	switch {
	case !unknown || t.reads:
		return unavailable(err)
	case t.once:
		return mayBeDone(err, lookFirst)
	}
	return mayBeDone(err, sendAgain)
}

// refused is the answer when something will not be carried out. If it is the database that
// refuses, it is not the caller's fault, and somebody must look at it. Unknown says that an
// earlier try may have taken effect, so that nobody may be told that nothing was done.
func (s *Store) refused(t *task, err error, unknown bool) error {
	switch {
	case errors.Is(err, store.ErrOverloaded) && unknown:
		return t.unavailable(errors.New(err.Error()), unknown)
	case isRefusal(err):
		return err
	}
	s.opts.Logger.Error("the database refuses a statement", "error", err)
	return t.unavailable(err, unknown)
}

// try makes one try. Done says that err, or no error, is the answer.
func (s *Store) try(ctx context.Context, t task) (done bool, err error) {
	var f found
	if t.quick != nil {
		f, done, err = t.quick(ctx)
	} else {
		f, err = s.read(ctx, &t)
	}
	if done || err != nil {
		return done, err
	}
	if s.settledBy(&t, f) {
		return true, t.refusal
	}
	end, err := s.turns.first(ctx, t.digest)
	if err == nil && end == nil {
		// What was written meanwhile has mostly made this write needless.
		if f, err = s.read(ctx, &t); err != nil {
			return false, err
		}
		if s.settledBy(&t, f) {
			return true, t.refusal
		}
		end, err = s.turns.take(ctx, t.digest)
	}
	if err != nil {
		return false, err
	}
	defer end()
	return s.write(ctx, &t, f.row)
}

// read finds the row of a task's key. However it fails, nothing was done.
func (s *Store) read(ctx context.Context, t *task) (found, error) {
	f, err := s.find(ctx, t)
	if faultOf(err) == faultUnknown {
		err = fmt.Errorf("%w: %w", errNotDone, err)
	}
	return f, err
}

// settledBy decides the task on what was found, and reports whether that needs no write.
func (s *Store) settledBy(t *task, f found) bool {
	change, refusal := t.decideOn(f.record(), f.now, s.wall())
	t.refusal = refusal
	return f.granted || change == store.Change{}
}

func (s *Store) wall() time.Time { return s.opts.Wall().UTC().Round(0) }
