package client

import (
	"context"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// askWaiting claims until the key is settled or the wait is over. A store that waits itself is
// asked once; one that answers at once, such as an embedded one, again and again.
func (x *execution) askWaiting(ctx context.Context) (answer store.ClaimAnswer, sent time.Time, err error) {
	over := time.Now().Add(min(x.request.Wait, x.longestWait(x.limit(ctx, x.request.Wait))))
	answer, sent, err = x.ask(ctx, x.request.Wait)
	for asked := over.Sub(sent); err == nil && x.asksAgain(ctx, answer, asked, over); {
		next, nextSent, failed := x.ask(ctx, max(time.Until(over), 0))
		if unanswered(failed) { // somebody holds the key, as far as is known: that is no time to act without a guard
			if mayBeGranted(failed) {
				x.giveBack(ctx, failed)
			}
			return answer, sent, nil
		}
		answer, sent, err = next, nextSent, failed
		asked = over.Sub(sent)
	}
	return answer, sent, err
}

// asksAgain pauses, and reports whether the claim is then to be sent again: if the store did
// not wait, although it was asked to. One that waits may keep a part of the wait for its
// answer to come back, which is never half of it.
func (x *execution) asksAgain(ctx context.Context, answer store.ClaimAnswer, asked time.Duration, over time.Time) bool {
	left := time.Until(over)
	if answer.InProgress == nil || left <= asked/2 {
		return false
	}
	hint := min(max(answer.InProgress.RetryAfter, shortPause), time.Second)
	return pause(ctx, min(hint, left))
}

// ask sends the claim, which may wait for another attempt.
func (x *execution) ask(ctx context.Context, wait time.Duration) (answer store.ClaimAnswer, sent time.Time, err error) {
	limit := x.limit(ctx, wait)
	asking, cancel := context.WithTimeout(withoutMetadata(ctx), limit)
	defer cancel()
	req := x.request
	req.Wait = min(wait, x.longestWait(limit))
	sent = time.Now()
	x.quiet.asked(sent.Add(req.Wait))
	if x.failOpen && wait == 0 {
		defer x.quiet.orGiveUp(timeToAct(ctx), cancel).Stop()
	}
	answer, err = x.store.Claim(asking, req)
	x.quiet.answered(err)
	if err == nil {
		answeredBy(x.store)
	}
	if err != nil && ctx.Err() == nil && isContextError(err) {
		err = x.unanswered(ctx, wait, time.Since(sent))
	}
	return answer, sent, err
}

// unanswered is the error of a claim that was given up. With FailOpen, that no answer came in
// the caller's time is no sign that the store is down: only that nothing came at all is one.
func (x *execution) unanswered(ctx context.Context, wait, within time.Duration) error {
	if x.failOpen && wait == 0 {
		if x.quiet.left() > 0 {
			return context.DeadlineExceeded
		}
		x.quiet.probe(ctx, x.store, x.request.Key)
	}
	return &store.Error{
		Sentinel: store.ErrUnavailable, Cause: context.DeadlineExceeded,
		Detail: fmt.Sprintf("no answer to the claim within %v", within.Round(time.Millisecond)),
	}
}

// longestWait leaves the answer to a claim that waited in vain time to come back from a
// store that is far away.
func (x *execution) longestWait(limit time.Duration) time.Duration {
	margin := min(max(limit/4, 250*time.Millisecond), x.patience)
	return max(limit-margin, 0)
}

// limit is how long the claim may take: no longer than leaves a caller with a deadline time
// to be told or, after a wait, to ask once more and to act without a guard.
func (x *execution) limit(ctx context.Context, wait time.Duration) time.Duration {
	limit := x.patience + wait
	deadline, ok := ctx.Deadline()
	if !ok {
		return limit
	}
	left := time.Until(deadline)
	if x.failOpen && wait > 0 {
		return min(limit, left/2)
	}
	return min(limit, left-min(left/10, 100*time.Millisecond))
}

// timeToAct is when a caller that may act without a guard begins to, if the store is silent:
// half of its time is for acting.
func timeToAct(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return claimTimeout
	}
	return time.Until(deadline) / 2
}
