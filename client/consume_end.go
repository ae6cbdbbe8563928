package client

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// ended is what becomes of a message whose handler ran and ended with err.
func ended(end ending, err error, number int) Disposition {
	switch {
	case err == nil:
		return Disposition{Action: Ack}
	case end.outcome != nil, isMarked(err) && isFinal(err):
		return Disposition{Action: DeadLetter, Err: unmarked(err)}
	default:
		return Disposition{After: retryDelay(err, number), Err: unmarked(err)}
	}
}

// isFinal reports whether an error is an answer that stays. A refusal of idemd can change.
func isFinal(err error) bool {
	st := statusOf(err)
	return !madeByIdemd(st) && slices.Contains(storedCodes, st.Code())
}

// repeated is what becomes of a message that was settled before.
func repeated(o *store.Outcome) Disposition {
	failure, err := failureOf(o)
	switch {
	case err != nil:
		return Disposition{After: personDelay, Err: err}
	case failure != nil:
		return Disposition{Action: DeadLetter, Repeat: true, Err: failure}
	default:
		return Disposition{Action: Ack, Repeat: true}
	}
}

// refused is what becomes of a message that was not granted. A dead letter is only what is
// wrong with the message itself, whoever is asked: no wrong set-up, of ours or of the namespace,
// sends all of a queue there, nor does a clock of idemd's that has jumped ahead.
func (c *Consumer) refused(err error, claim store.ClaimRequest) Disposition {
	ahead := time.Until(claim.IntentTime)
	switch {
	case errors.Is(err, store.ErrFingerprintMismatch), errors.Is(err, store.ErrKeyExpired) && -ahead >= c.queue.MaxAge:
		return Disposition{Action: DeadLetter, Err: err}
	case isAny(err, store.ErrKeyRequired, store.ErrInvalidArgument) && (claim.Validate() != nil || ahead > c.queue.MaxAge):
		return Disposition{Action: DeadLetter, Err: err}
	case errors.Is(err, store.ErrInvalidArgument) && ahead > 0: // its producer's clock is ahead
		return Disposition{After: min(ahead, maxAheadDelay), Err: err}
	case errors.Is(err, store.ErrKeyInProgress), unanswered(err):
		return Disposition{After: retryDelay(err, 1), Err: err}
	default: // somebody has to do something
		return Disposition{After: personDelay, Err: err}
	}
}

const (
	firstRetryDelay = time.Second
	maxRetryDelay   = time.Minute
	personDelay     = time.Minute
	maxAheadDelay   = 15 * time.Minute // some queues wait no longer
)

// retryDelay doubles with each attempt, half of it is random, and it is never shorter than the
// hint.
func retryDelay(err error, number int) time.Duration {
	half := min(firstRetryDelay<<min(max(number, 1)-1, 10), maxRetryDelay) / 2
	return max(retryAfter(err), half+rand.N(half))
}
