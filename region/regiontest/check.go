package regiontest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// clockSlack is how far two regions' clocks, and the test's, may be apart: they are those of
// one machine, but stores slew theirs.
const clockSlack = 50 * time.Millisecond

// Check returns what in the history breaks a promise, each with all that was said about its key.
func (h *History) Check() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	byKey := map[store.Key][]call{}
	for _, c := range h.calls {
		byKey[c.Key] = append(byKey[c.Key], c)
	}
	var faults []error
	for key, calls := range byKey {
		slices.SortFunc(calls, func(a, b call) int { return int(a.Sent - b.Sent) })
		k := newKeyHistory(calls)
		if k.check(); len(k.faults) > 0 {
			faults = append(faults, fmt.Errorf("key %+v: %s\n%s", key, strings.Join(k.faults, "; "), transcript(calls)))
		}
	}
	return faults
}

// Summary says how much was seen.
func (h *History) Summary() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	kinds, keys := map[string]int{}, map[store.Key]bool{}
	for i := range h.calls {
		c := &h.calls[i]
		keys[c.Key] = true
		kinds[c.summary()]++
	}
	text := fmt.Sprintf("%d calls on %d keys", len(h.calls), len(keys))
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		text += fmt.Sprintf(", %d %s", kinds[kind], kind)
	}
	return text
}

// Count is how many calls were answered in a way, such as "granted", "refused" or "unknown".
func (h *History) Count(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for i := range h.calls {
		if h.calls[i].summary() == what {
			n++
		}
	}
	return n
}

// summary is how the call was answered, in a word.
func (c *call) summary() string {
	switch {
	case c.unknown():
		return "unknown"
	case c.Err != nil:
		return "refused"
	}
	return string(c.Told.Kind)
}

func transcript(calls []call) string {
	var b strings.Builder
	for i := range calls {
		fmt.Fprintf(&b, "  %s\n", &calls[i])
	}
	return b.String()
}

// keyHistory is the calls about one key, in the order in which they were sent.
type keyHistory struct {
	calls  []call
	grants []*grant // by fence
	byID   map[string]*grant
	faults []string
}

// grant is what is known of an attempt that was granted the key.
type grant struct {
	attempt   string
	fence     int64
	previous  int64
	unsettled bool
	since     time.Time // it is unsettled
	grantedAt time.Time
	claimed   time.Duration // when it was first asked for
	answered  time.Duration // when it was first answered
	leaseEnd  time.Time     // the latest that was said
	deadline  time.Duration
	ending    time.Duration // when its holder first gave its end; never: far away
	nothing   bool          // its holder said once that nothing happened
}

const never = time.Duration(1<<63 - 1)

func newKeyHistory(calls []call) *keyHistory {
	k := &keyHistory{calls: calls, byID: map[string]*grant{}}
	claimed := map[string]time.Duration{}
	for _, c := range calls {
		if _, again := claimed[c.Attempt]; c.Op == opClaim && !again {
			claimed[c.Attempt] = c.Sent
		}
		if c.Told.Kind == granted {
			k.granted(&c, claimed[c.Attempt])
		}
	}
	for _, c := range calls {
		k.held(&c)
	}
	slices.SortFunc(k.grants, func(a, b *grant) int { return int(a.fence - b.fence) })
	return k
}

func (k *keyHistory) fault(format string, args ...any) {
	k.faults = append(k.faults, fmt.Sprintf(format, args...))
}

// granted notes a grant, or that it was said again.
func (k *keyHistory) granted(c *call, claimed time.Duration) {
	t := c.Told
	g := k.byID[c.Attempt]
	if g == nil {
		g = &grant{
			attempt: c.Attempt, fence: t.Fence, previous: t.Previous, unsettled: t.Unsettled, since: t.Since, grantedAt: t.GrantedAt,
			claimed: claimed, answered: c.Answered, ending: never,
		}
		k.byID[c.Attempt] = g
		k.grants = append(k.grants, g)
	}
	if g.fence != t.Fence {
		k.fault("S2: attempt %q was granted fence %d and fence %d", c.Attempt, g.fence, t.Fence)
	}
	g.answered = min(g.answered, c.Answered)
}

// held notes how long a holder may act, and what it says of its end.
func (k *keyHistory) held(c *call) {
	g := k.byID[c.Attempt]
	if g == nil || c.Op != opClaim && c.Fence != g.fence {
		return
	}
	switch c.Op {
	case opClaim, opRenew:
		if c.Told.Kind == granted || c.Told.Kind == renewed {
			if c.Told.LeaseEnd.After(g.leaseEnd) {
				g.leaseEnd = c.Told.LeaseEnd
			}
			g.deadline = max(g.deadline, c.Told.Deadline)
		}
	case opComplete, opRelease:
		g.ending = min(g.ending, c.Sent)
		g.nothing = g.nothing || c.Effect == store.EffectNone
	}
}

func (k *keyHistory) check() {
	k.checkFences()
	k.checkLeases()
	k.checkRights()
	k.checkOutcomes()
	k.checkLookups()
	k.checkHomes()
	if len(k.faults) == 0 {
		k.checkLinear()
	}
}

// checkFences is S2.
func (k *keyHistory) checkFences() {
	for i, g := range k.grants {
		if i > 0 && k.grants[i-1].fence == g.fence {
			k.fault("S2: fence %d was granted to %q and to %q", g.fence, k.grants[i-1].attempt, g.attempt)
		}
		for _, later := range k.grants[i+1:] {
			if later.answered < g.claimed {
				k.fault("S2: fence %d was granted before fence %d was asked for", later.fence, g.fence)
			}
		}
		if g.previous >= g.fence {
			k.fault("S2: fence %d was granted after fence %d", g.fence, g.previous)
		}
	}
}

// checkLeases is S1, by the store's clock and by the test's, and S10.
func (k *keyHistory) checkLeases() {
	for i, g := range k.grants {
		for _, next := range k.grants[i+1:] {
			own := next.answered > g.ending // its holder may have ended it before
			if !own && next.grantedAt.Add(clockSlack).Before(g.leaseEnd) {
				k.fault("S1: fence %d was granted at %v, while fence %d was leased until %v", next.fence, next.grantedAt, g.fence, g.leaseEnd)
			}
			if !own && next.answered+clockSlack < g.deadline {
				k.fault("S1: fence %d was granted %v before the holder of fence %d had to stop", next.fence, g.deadline-next.answered, g.fence)
			}
			if next.previous == g.fence && !g.nothing && !next.unsettled {
				k.fault("S10: fence %d was granted unmarked, though nobody knows what fence %d did", next.fence, g.fence)
			}
			if next.previous == g.fence && !g.nothing && next.since.After(g.grantedAt) {
				k.fault("S10: fence %d is unsettled since %v, though nobody knows what fence %d did, granted at %v", next.fence, next.since, g.fence, g.grantedAt)
			}
		}
	}
}

// checkRights is S3: who is not the holder changes nothing.
func (k *keyHistory) checkRights() {
	for i := range k.calls {
		c := &k.calls[i]
		if c.Err != nil || c.Op == opClaim || c.Op == opLookup {
			continue
		}
		if g := k.byID[c.Attempt]; g != nil && g.fence != c.Fence || g == nil && !k.claimedBy(c.Attempt, c.Sent) {
			k.fault("S3: %s by %q with fence %d was done", c.Op, c.Attempt, c.Fence)
		}
	}
}

func (k *keyHistory) claimedBy(attempt string, before time.Duration) bool {
	return slices.ContainsFunc(k.calls, func(c call) bool {
		return c.Op == opClaim && c.Attempt == attempt && c.Sent < before
	})
}

// checkOutcomes is S4: there is one outcome, one that was sent, and it stays.
func (k *keyHistory) checkOutcomes() {
	sent, seen := map[string]bool{}, map[string]bool{}
	known := never
	for i := range k.calls {
		c := &k.calls[i]
		if c.Op == opComplete {
			sent[c.Outcome] = true
		}
		if outcome, ok := c.ended(); ok {
			seen[outcome] = true
			known = min(known, c.Answered)
		}
	}
	if len(seen) > 1 {
		k.fault("S4: there were %d outcomes: %q", len(seen), slices.Sorted(maps.Keys(seen)))
	}
	for outcome := range seen {
		if !sent[outcome] {
			k.fault("S5: outcome %q was never sent", outcome)
		}
	}
	for i := range k.calls {
		c := &k.calls[i]
		if c.Sent > known && c.forgets() {
			k.fault("S4: after the key was completed, this was answered: %s", c)
		}
	}
}

// ended is the outcome, if the answer says that the key is completed.
func (c *call) ended() (string, bool) {
	switch {
	case c.Told.Kind == recorded:
		return c.Outcome, true
	case c.Told.Kind == completed, c.Told.Kind == found && c.Told.State == store.StateCompleted:
		return c.Told.Outcome, true
	}
	return "", false
}

// forgets says that the answer is not that of a completed key.
func (c *call) forgets() bool {
	switch {
	case c.Err != nil:
		return errors.Is(c.Err, store.ErrKeyNotFound)
	case c.Op == opClaim || c.Op == opLookup:
		_, ended := c.ended()
		return !ended
	}
	return c.Op == opRenew || c.Op == opRelease
}

// checkLookups is S11 as far as fences say it: what was acknowledged before is seen.
func (k *keyHistory) checkLookups() {
	for i := range k.calls {
		c := &k.calls[i]
		if c.Op != opLookup {
			continue
		}
		newest := int64(0)
		for j := range k.calls {
			if before := &k.calls[j]; before.Answered < c.Sent && before.Err == nil {
				newest = max(newest, before.Told.Fence)
			}
		}
		if newest > 0 && (errors.Is(c.Err, store.ErrKeyNotFound) || c.Err == nil && c.Told.Fence < newest) {
			k.fault("S11: fence %d was known before this was asked: %s", newest, c)
		}
	}
}

// checkHomes: under one epoch a key has one home, and nothing is granted or changed under an
// older epoch than one that was seen before.
func (k *keyHistory) checkHomes() {
	homes := map[int64]string{}
	for i := range k.calls {
		c := &k.calls[i]
		s := c.Told.Served
		if c.Err != nil || s.Home == "" {
			continue
		}
		if home, ok := homes[s.Epoch]; ok && home != s.Home {
			k.fault("home: %q and %q under epoch %d", home, s.Home, s.Epoch)
		}
		homes[s.Epoch] = s.Home
		for j := range k.calls {
			if before := &k.calls[j]; before.Answered < c.Sent && before.Told.Served.Epoch > s.Epoch {
				k.fault("home: after epoch %d was seen, this was answered under epoch %d: %s", before.Told.Served.Epoch, s.Epoch, c)
				break
			}
		}
	}
}
