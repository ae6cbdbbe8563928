package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
)

// answers gives what is sent one after the other, and counts.
type answers struct {
	errs []error
	sent int
}

func (a *answers) send() (int, error) {
	a.sent++
	return a.sent, a.errs[min(a.sent, len(a.errs))-1]
}

func retried(t *testing.T, budget *retryBudget, errs ...error) (sent int, took, later time.Duration, err error) {
	t.Helper()
	a := &answers{errs: errs}
	start := time.Now()
	_, later, err = retry(t.Context(), budget, a.send)
	return a.sent, time.Since(start), later, err
}

func TestRetry(t *testing.T) { synctest.Test(t, testRetry) }

func testRetry(t *testing.T) {
	hinted := &store.Error{Sentinel: store.ErrOverloaded, RetryAfter: 3 * time.Second}
	for _, test := range []struct {
		name        string
		errs        []error
		sent        int
		least, most time.Duration
	}{
		{"answered", []error{nil}, 1, 0, 0},
		{"unavailable once", []error{store.ErrUnavailable, nil}, 2, 0, firstPause},
		{"unavailable for good", []error{store.ErrUnavailable}, maxTries, 0, 15 * firstPause},
		{"a hint", []error{hinted, nil}, 2, 3 * time.Second, 3*time.Second + firstPause},
		{"a refusal", []error{store.ErrStaleFence}, 1, 0, 0},
		{"a deadline", []error{context.DeadlineExceeded}, 1, 0, 0},
	} {
		sent, took, later, err := retried(t, &retryBudget{}, test.errs...)
		if sent != test.sent || !errors.Is(err, test.errs[len(test.errs)-1]) {
			t.Errorf("%s: sent %d times, not %d: %v", test.name, sent, test.sent, err)
		}
		if took < test.least || took > test.most || later != took {
			t.Errorf("%s: took %v, last sent after %v; allowed are %v to %v", test.name, took, later, test.least, test.most)
		}
	}
}

// L5: retries are at most a tenth of the calls, and one a second.
func TestRetryBudget(t *testing.T) { synctest.Test(t, testRetryBudget) }

func testRetryBudget(t *testing.T) {
	budget := &retryBudget{}
	const calls = 1000
	start, total := time.Now(), 0
	for range calls {
		sent, _, _, _ := retried(t, budget, store.ErrUnavailable)
		total += sent - 1
	}
	limit := retryReserve + calls/10 + int(time.Since(start).Seconds()) + 1
	if total > limit || total < calls/10 {
		t.Errorf("%d retries of %d calls in %v; allowed are %d", total, calls, time.Since(start), limit)
	}
	time.Sleep(retryReserve * time.Second)
	if sent, _, _, _ := retried(t, budget, store.ErrUnavailable); sent != maxTries {
		t.Errorf("after a rest a call is sent %d times", sent)
	}
}

func TestRetryKeepsToTheDeadline(t *testing.T) { synctest.Test(t, testRetryKeepsToTheDeadline) }

func testRetryKeepsToTheDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	hinted := &answers{errs: []error{&store.Error{Sentinel: store.ErrUnavailable, RetryAfter: 2 * time.Second}}}
	if _, _, err := retry(ctx, &retryBudget{}, hinted.send); !errors.Is(err, store.ErrUnavailable) || hinted.sent != 1 || ctx.Err() != nil {
		t.Errorf("sent %d times, %v, context %v", hinted.sent, err, ctx.Err())
	}
}
