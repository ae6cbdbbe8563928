package sqlstore

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// history is what the workers of a stress were answered.
type history struct {
	mu       sync.Mutex
	grants   []*grant
	byID     map[string]*grant // by attempt id
	outcomes map[store.Key]outcome
	faults   []string

	takeovers, moves, replays int
}

// grant is one attempt's, however often it was answered.
type grant struct {
	key            store.Key
	attempt        string
	fence          int64
	previous       int64
	number         int
	at, end        time.Time // by the store's clock; the end that is known
	sent, answered time.Time // by the monotonic clock: the last time it was sent, the first time it was answered
	ended          bool      // it may have been completed or released
}

type outcome struct {
	fence   int64
	body    string
	expires time.Time
	stored  time.Time // by the monotonic clock
}

// claimed takes note of a Claim's answer, and returns its grant if it was granted.
func (h *history) claimed(req store.ClaimRequest, answer store.ClaimAnswer, err error, sent time.Time) *grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		return nil
	case answer.Completed != nil:
		h.replayed(req.Key, answer.Completed)
		return nil
	case answer.Granted == nil:
		return nil
	}
	got := answer.Granted
	if g := h.byID[req.AttemptID]; g != nil {
		if g.fence != got.Fence || g.number != got.AttemptNumber {
			h.fault("a claim was sent again and granted with another fence", g)
		}
		g.end = got.LeaseExpiresAt
		return g
	}
	g := &grant{
		key: req.Key, attempt: req.AttemptID, fence: got.Fence, previous: got.PreviousFence, number: got.AttemptNumber,
		at: got.GrantedAt, end: got.LeaseExpiresAt, sent: sent, answered: time.Now(),
	}
	h.grants = append(h.grants, g)
	h.byID[g.attempt] = g
	if got.Unsettled {
		h.takeovers++
	}
	if g.previous != 0 && bucketAt(store.TierHour, g.previous) != bucketAt(store.TierHour, g.fence) {
		h.moves++
	}
	if done, ok := h.outcomes[g.key]; ok && g.sent.After(done.stored) && g.at.Before(done.expires) {
		h.fault("granted after it was completed", g)
	}
	return g
}

func (h *history) fault(what string, g *grant) {
	h.faults = append(h.faults, what+": "+describe(claimed{ClaimAnswer: store.ClaimAnswer{Granted: &store.Granted{
		Fence: g.fence, AttemptNumber: g.number, PreviousFence: g.previous, GrantedAt: g.at, LeaseExpiresAt: g.end,
	}}})+" of "+g.key.ID+" by "+g.attempt)
}

// replayed checks an outcome that was told against the one that is known (S4).
func (h *history) replayed(key store.Key, got *store.Completed) {
	h.replays++
	is := outcome{fence: got.Fence, body: string(got.Outcome.Body), expires: got.ExpiresAt, stored: time.Now()}
	h.outcome(key, is)
}

func (h *history) outcome(key store.Key, is outcome) {
	was, ok := h.outcomes[key]
	switch {
	case !ok:
		h.outcomes[key] = is
	case was.fence != is.fence || was.body != is.body || !was.expires.Equal(is.expires):
		h.faults = append(h.faults, "the outcome of "+key.ID+" was "+was.body+" and is "+is.body)
	}
}

func (h *history) completed(key store.Key, g *grant, body string, answer store.CompleteAnswer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcome(key, outcome{fence: g.fence, body: body, expires: answer.ExpiresAt, stored: time.Now()})
}

func (h *history) renewed(g *grant, end time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if end.After(g.end) {
		g.end = end
	}
}

// ending says that an end of the attempt is about to be sent.
func (h *history) ending(g *grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g.ended = true
}

// check judges all grants of each key: one lease at a time by the store's clock (S1), and fences
// that grow, also by the order in which they were answered and asked for (S2).
func (h *history) check(t *testing.T) {
	t.Helper()
	byKey := map[store.Key][]*grant{}
	for _, g := range h.grants {
		byKey[g.key] = append(byKey[g.key], g)
	}
	for _, grants := range byKey {
		slices.SortFunc(grants, func(a, b *grant) int { return int(a.fence - b.fence) })
		for i, b := range grants {
			for _, a := range grants[:i] {
				switch {
				case a.fence == b.fence:
					h.fault("two attempts with one fence", a)
					h.fault("two attempts with one fence", b)
				case !a.ended && b.at.Before(a.end):
					h.fault("two leases at once: the first", a)
					h.fault("two leases at once: the second", b)
				case b.answered.Before(a.sent):
					h.fault("a lower fence was asked for later", a)
				}
			}
		}
	}
	for _, fault := range h.faults {
		t.Error(fault)
	}
}
