package sqlstore

import (
	"context"
	"errors"
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
	decide decision
	// quick is the statement of the common path; nil if there is none. It returns what it
	// found if it did not settle the matter.
	quick func(context.Context) (f found, done bool, err error)
	// once says that the operation must not be sent again if it may have taken effect,
	// because a repeat would not be known as one.
	once bool
}

// perform carries out a task (5): the quick statement; then what the rows say; then, if that
// is to change something, a transaction. Whatever may have taken effect is found again by its
// attempt id, as any repeat is.
func (s *Store) perform(ctx context.Context, t task) error {
	if err := s.closed(); err != nil {
		return err
	}
	var last error
	for n := range tries {
		if err := backoff(ctx, n); err != nil {
			return err
		}
		done, err := s.try(ctx, t)
		if done {
			return err
		}
		switch faultOf(err) {
		case faultRefused:
			return s.refused(err)
		case faultGone:
			s.catalog.kick()
			err = errors.Join(err, s.catalog.refresh(ctx))
		case faultUnknown:
			if t.once || ctx.Err() != nil {
				return s.gaveUp(ctx, err)
			}
		}
		last = err
	}
	return s.gaveUp(ctx, last)
}

// gaveUp is the answer of an operation that may have taken effect.
func (s *Store) gaveUp(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return unavailable(err)
}

// refused is the answer when the database will not carry something out: it is not the
// caller's fault, and somebody must look at it.
func (s *Store) refused(err error) error {
	var refusal *store.Error
	if errors.As(err, &refusal) {
		return err
	}
	s.opts.Logger.Error("the database refuses a statement", "error", err)
	return unavailable(err)
}

// try makes one try. Done says that err, or no error, is the answer.
func (s *Store) try(ctx context.Context, t task) (done bool, err error) {
	var f found
	if t.quick != nil {
		f, done, err = t.quick(ctx)
	} else {
		f, err = s.find(ctx, &t)
	}
	if done || err != nil {
		return done, err
	}
	change, refusal := t.decide(f.record(), timeOf(f.now), s.wall())
	switch {
	case f.granted, change == store.Change{}:
		return true, refusal
	}
	return s.write(ctx, t, f.row)
}

func (s *Store) wall() time.Time { return s.opts.Wall().UTC().Round(0) }
