package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	// recordTimeout is how long a caller waits for what it did to be recorded, and a send in
	// the background for its answer.
	recordTimeout = 5 * time.Second
	// recordFor is how long recording goes on in the background after that.
	recordFor = 10 * time.Minute
)

// record stores how an attempt ended. It does not end with the caller's context: the
// caller may be gone, the effect is not.
func (x *execution) record(ctx context.Context, end *ending) error {
	return x.send(withoutMetadata(context.WithoutCancel(ctx)), end)
}

// send asks the store to end the attempt. An outcome that is too large it makes shorter for
// good: nothing keeps in memory what cannot be stored.
func (x *execution) send(ctx context.Context, end *ending) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	a := x.attempt
	if end.outcome == nil {
		_, err := x.store.Release(ctx, store.ReleaseRequest{Key: a.Key, AttemptID: a.ID, Fence: a.Fence, Effect: end.effect})
		return err
	}
	for {
		req := store.CompleteRequest{Key: a.Key, AttemptID: a.ID, Fence: a.Fence, Outcome: end.outcome}
		if err := req.Validate(); errors.Is(err, store.ErrInvalidArgument) {
			return fmt.Errorf("%w: %w", errInvalidOutcome, err)
		}
		_, err := x.store.Complete(ctx, req)
		if !errors.Is(err, store.ErrOutcomeTooLarge) || !end.shorten() {
			return err
		}
	}
}

var errInvalidOutcome = errors.New("the outcome cannot be stored")

// fit makes an outcome short enough for any store.
func (e *ending) fit() {
	for e.outcome != nil && e.outcome.Size() > store.MaxOutcomeBytes && e.shorten() {
	}
}

// shorten leaves out the metadata of an outcome, or else its body. It is false if nothing
// can be left out any more.
func (e *ending) shorten() bool {
	o := e.outcome
	kept := essential(o.Header)
	switch {
	case len(o.Header)+len(o.Trailer) > len(kept):
		short := *o
		short.Header, short.Trailer = kept, nil
		e.outcome = &short
	case !o.BodyOmitted:
		e.outcome, e.why = withoutBody(o), store.ErrOutcomeTooLarge
	default:
		return false
	}
	return true
}

// essential returns the metadata without which an outcome means nothing to its guard.
func essential(list []store.MetadataEntry) []store.MetadataEntry {
	var kept []store.MetadataEntry
	for _, entry := range list {
		if strings.HasPrefix(entry.Name, ":") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// size is how many bytes an ending keeps in memory.
func (e *ending) size() int {
	if e.outcome == nil {
		return 0
	}
	return e.outcome.Size()
}

// room is where an ending waits to be recorded. That nothing is known the lapse says too.
func (e *ending) room() *room {
	if e.isUnknown() {
		return releases
	}
	return outcomes
}

// settleLater has the end of an attempt recorded without anybody waiting for it.
func (x *execution) settleLater(ctx context.Context, end ending) { x.recordLater(ctx, end, nil) }

// recordLater goes on recording in the background, under the lease. failed is the error of
// recording it before; nil if that was not tried.
func (x *execution) recordLater(ctx context.Context, end ending, failed error) {
	x.lease.lose(nil)
	end.fit()
	p := x.pendingOf(&end)
	recording := func() {
		defer x.lease.stop()
		defer p.forget()
		ctx, cancel := context.WithTimeout(onItsOwn(ctx), recordFor)
		defer cancel()
		err := persist(ctx, failed, end.again, p.pause, func(ctx context.Context) error { return x.send(ctx, &end) })
		if err == nil {
			answeredBy(x.store)
		}
		if p.recorded(err) {
			err = nil
		}
		x.recorded(end, err)
	}
	if !end.room().run(end.size(), recording) {
		p.forget()
		x.lease.stop()
		x.recorded(end, errTooMuchToRecord)
	}
}

var errTooMuchToRecord = errors.New("too many outcomes wait to be recorded")

// again reports whether recording goes on after err. It does unless that is about this
// attempt or this outcome: what was done is worth it. An ending as unknown is not: the
// lapse of the key does the same.
func (e *ending) again(err error) bool {
	if e.isUnknown() {
		return false
	}
	return !attemptIsOver(err) && !isAny(err, store.ErrAttemptTooLong, store.ErrOutcomeTooLarge, errInvalidOutcome)
}

// isDown reports whether an error of a claim says that the store does not answer. A caller
// that went away, and a refusal to be sent again later, are no such thing.
func isDown(err error) bool {
	return noAnswer(err) || isAny(err, store.ErrInternal, context.DeadlineExceeded)
}

// noAnswer reports whether neither the store nor the key's home says anything. Where there is no home
// for now somebody has said so, who knows that it is not known what the key was used for.
func noAnswer(err error) bool {
	return isAny(err, store.ErrUnavailable, store.ErrHomeUnreachable) && !isAny(err, store.ErrNoHome)
}

// unanswered reports whether the store may yet answer, if asked again.
func unanswered(err error) bool {
	return worthRetrying(err) || isContextError(err)
}
