package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// cases are the faults met in the field that a backend alone must get right, under the
// numbers and names they have in the list of cases. The others need an interceptor, a
// client, identity, regions, load or a damaged disk.
var cases = []check{
	{"02 nil, empty and one-byte requests", on(caseEmptyFingerprints)},
	{"04 fingerprints of two versions", on(caseVersionedFingerprints)},
	{"06 two tenants, same key", on(caseTwoTenants)},
	{"07 one key on two methods", on(caseTwoMethods)},
	{"08 limits in bytes", on(caseLimits)},
	{"09 bytes as given", on(caseBytesAsGiven)},
	{"09 control characters", on(caseControlCharacters)},
	{"11 holder killed", on(caseHolderKilled)},
	{"12 key stuck for days", on(caseStuckKey)},
	{"14 late outcome after another's", caseLateOutcome},
	{"15 expiry on the store's clock", on(caseStoreClock)},
	{"16 clock steps", on(caseClockSteps)},
	{"17 20 stealers with a deadline", on(caseStealers)},
	{"18 commit done, reply lost", on(caseReplyLost)},
	{"19 200 goroutines, one execution", on(caseOneExecution)},
	{"20 a losing or mismatched Claim", caseLosingClaim},
	{"21 delayed Claim of a released attempt", on(caseGhostLease)},
	{"22 delayed duplicate Claim after the lease's end", on(caseNoTakeoverOfItself)},
	{"30 empty response message", on(caseEmptyResponse)},
	{"31 claim, complete, claim", on(caseClaimCompleteClaim)},
	{"32 response too large", on(caseTooLarge)},
	{"35 redelivery after the window", on(caseRedelivery)},
	{"36 expired but not yet dropped", on(caseExactExpiry)},
}

func caseHolderKilled(r *rig) {
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"} // retention 24 h
	r.grant(key, "killed")
	r.Clock.Advance(store.DefaultLease - time.Microsecond)
	r.do(claim(key, "next"), "in progress")
	r.Clock.Advance(time.Microsecond)
	got := r.do(claim(key, "next"), "granted")
	equal(r, "unsettled", got.Unsettled, true)
	equal(r, "attempt number", got.Number, 2)
}

func caseStuckKey(r *rig) {
	h := r.grant(holdKey, "stuck")
	r.Clock.Advance(72 * time.Hour)
	r.upkeep()
	r.do(claim(holdKey, "next"), "unresolved")
	r.refuse(call{Kind: opForce, Key: holdKey, Actor: "operator"}, store.ErrInvalidArgument)
	forced := r.do(force(holdKey), "changed").Record
	if forced.Fence <= h.fence {
		r.Fatalf("ForceRelease left fence %d after %d", forced.Fence, h.fence)
	}
	r.upkeep()
	audit := r.events(holdKey, store.EventForceReleased)
	equal(r, "events of the ForceRelease", len(audit), 1)
	equal(r, "fence in the event", audit[0].Fence, h.fence)
	equal(r, "new fence in the event", audit[0].NewFence, forced.Fence)
	equal(r, "who", audit[0].Actor, "operator")
	equal(r, "why", audit[0].Reason, "because")
	for _, stale := range []holder{h, {h.attempt, forced.Fence}} {
		r.refuse(renew(holdKey, stale), store.ErrStaleFence)
		r.refuse(complete(holdKey, stale, done), store.ErrStaleFence)
		r.refuse(release(holdKey, stale, store.EffectNone), store.ErrStaleFence)
	}
	r.refuse(claim(holdKey, "stuck"), store.ErrStaleAttempt)
	got := r.do(claim(holdKey, "next"), "granted")
	equal(r, "unsettled", got.Unsettled, true)
	r.grows([]int64{h.fence, forced.Fence, got.Fence})
}

func caseLateOutcome(t testing.TB, factory Factory) {
	r := newRig(t, factory)
	a := r.grant(takeoverKey, "a")
	r.lapse(takeoverKey)
	b := r.completed(takeoverKey, "b", done)
	before := r.record(takeoverKey)
	for range 3 { // the same evidence is kept once
		r.refuse(complete(takeoverKey, a, other), store.ErrStaleFence)
		r.Clock.Advance(time.Second)
	}
	r.refuse(release(takeoverKey, a, store.EffectNone), store.ErrStaleFence)
	r.refuse(release(takeoverKey, a, store.EffectUnknown), store.ErrStaleFence)
	r.upkeep()
	r.unchanged(takeoverKey, before, "a late outcome")
	equal(r, "outcome", r.do(claim(takeoverKey, "c"), "completed").Outcome, outcomeText(done))
	late := r.events(takeoverKey, store.EventLateOutcome)
	equal(r, "late outcomes kept", len(late), 1)
	equal(r, "fence of the late outcome", late[0].Fence, a.fence)
	equal(r, "late outcome", outcomeText(late[0].Outcome), outcomeText(other))
	takeovers := r.events(takeoverKey, store.EventTakeover)
	equal(r, "takeovers", len(takeovers), 1)
	equal(r, "fence taken over", takeovers[0].Fence, a.fence)
	equal(r, "fence of the takeover", takeovers[0].NewFence, b.fence)
}

// caseStoreClock: the scripted clock is far from the caller's, and the only time that a
// caller sends moves nothing.
func caseStoreClock(r *rig) {
	for i, skew := range []time.Duration{0, 30 * time.Second, -30 * time.Second} {
		c := claim(store.Key{Namespace: store.DefaultNamespace, ID: string(rune('a' + i))}, "a")
		c.Intent = at(r.Clock.Wall().Add(skew))
		got := r.do(c, "granted")
		equal(r, "granted at", got.GrantedAt, at(Start))
		equal(r, "lease end", got.LeaseEnd, at(Start).add(store.DefaultLease))
		equal(r, "lease remaining", got.Remaining, store.DefaultLease)
	}
	deadline, cancel := context.WithDeadline(r.ctx, time.Now().Add(time.Hour))
	defer cancel()
	key := store.Key{Namespace: store.DefaultNamespace, ID: "a"}
	equal(r, "answer under a deadline", claim(key, "b").perform(deadline, r.Backend).Kind, "in progress")
}

func caseClockSteps(r *rig) {
	h := r.grant(takeoverKey, "a")
	r.Clock.Advance(5 * time.Second)
	end := r.do(renew(takeoverKey, h), "renewed").LeaseEnd
	r.Clock.StepWall(-60 * time.Second)
	if got := r.do(renew(takeoverKey, h), "renewed").LeaseEnd; got < end {
		r.Fatalf("a Renew after a step back moved the lease end from %v to %v", end, got)
	}
	r.Clock.StepWall(time.Hour + time.Minute)
	r.Clock.Advance(9 * time.Second)
	r.do(claim(takeoverKey, "b"), "in progress")
	r.do(renew(takeoverKey, h), "renewed")
	r.do(complete(takeoverKey, h, done), "recorded")
	r.Clock.StepWall(48 * time.Hour)
	r.maintain()
	r.do(claim(takeoverKey, "b"), "completed")
}

// caseStealers: on a machine that is so busy that nobody is answered in time it is played once more,
// with more time.
func caseStealers(r *rig) {
	for _, deadline := range []time.Duration{200 * time.Millisecond, 5 * time.Second} {
		key := takeoverKey
		key.ID += deadline.String()
		if steal(r, key, deadline) > 0 {
			return
		}
	}
	r.Error("no stealer was granted the key")
}

// steal has many take over a lapsed key at once, with one deadline, and returns how many got it.
func steal(r *rig, key store.Key, deadline time.Duration) int32 {
	const stealers = 20
	h := r.grant(key, "a")
	r.lapse(key)
	ctx, cancel := context.WithTimeout(r.ctx, deadline)
	defer cancel()
	var granted, others atomic.Int32
	var group sync.WaitGroup
	for _, attempt := range attemptNames(stealers) {
		group.Go(func() {
			c := claim(key, attempt).claimRequest()
			c.Wait = store.MaxWait // the deadline is shorter, and counts
			answer, err := r.Claim(ctx, c)
			switch {
			case err == nil && answer.Granted != nil:
				granted.Add(1)
			case err == nil && answer.InProgress != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, store.ErrUnavailable):
				others.Add(1)
			default:
				r.Errorf("a stealer was told %+v, %v", answer, err)
			}
		})
	}
	returned := make(chan struct{})
	go func() { group.Wait(); close(returned) }()
	select {
	case <-returned:
	case <-time.After(deadline + 10*time.Second): // a busy machine, not a longer deadline
		r.Fatalf("stealers have not come back long after their deadline of %v", deadline)
	}
	if granted.Load() == 0 {
		return 0
	}
	equal(r, "stealers granted the key", granted.Load(), 1)
	equal(r, "stealers turned away", others.Load(), stealers-1)
	takeovers := r.events(key, store.EventTakeover)
	equal(r, "takeovers", len(takeovers), 1)
	equal(r, "fence taken over", takeovers[0].Fence, h.fence)
	return granted.Load()
}

// caseReplyLost sends everything again, as after a lost reply, and once with a context
// that is already gone.
func caseReplyLost(r *rig) {
	gone, cancel := context.WithCancel(r.ctx)
	cancel()
	again := func(c call, kind string) reply {
		r.Helper()
		c.perform(gone, r.Backend) // its answer is lost, whether it took effect or not
		first := r.do(c, kind)
		r.reopen()
		equal(r, "the answer when sent again", r.do(c, kind), first)
		return first
	}
	h := holder{"a", again(claim(takeoverKey, "a"), "granted").Fence}
	r.Clock.Advance(time.Second)
	got := r.do(claim(takeoverKey, "a"), "granted")
	equal(r, "fence", got.Fence, h.fence)
	equal(r, "attempt number", got.Number, 1)
	equal(r, "lease remaining", got.Remaining, 9*time.Second)
	again(complete(takeoverKey, h, done), "recorded")
}

// caseOneExecution has everybody try until there is an outcome.
func caseOneExecution(r *rig) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute) // so that a backend without a winner fails here
	defer cancel()
	var executions atomic.Int32
	settled := make(chan struct{})
	settle := sync.OnceFunc(func() { close(settled) })
	var callers sync.WaitGroup
	for _, attempt := range attemptNames(200) {
		callers.Go(func() {
			got := claim(takeoverKey, attempt).perform(ctx, r.Backend)
			if got.Kind == "granted" {
				executions.Add(1)
				defer settle()
				got = complete(takeoverKey, holder{attempt, got.Fence}, done).perform(ctx, r.Backend)
				if got.Kind != "recorded" {
					r.Errorf("the holder's outcome was not recorded: %s %v", got.Kind, got.Refusal)
				}
				return
			}
			if got.Kind == "in progress" {
				select {
				case <-settled:
				case <-ctx.Done():
				}
				got = claim(takeoverKey, attempt).perform(ctx, r.Backend)
			}
			if got.Kind != "completed" || got.Outcome != outcomeText(done) {
				r.Errorf("a repeat got %s %v %q", got.Kind, got.Refusal, got.Outcome)
			}
		})
	}
	callers.Wait()
	equal(r, "executions", executions.Load(), 1)
}

// caseLosingClaim compares the whole record, events included, in every state in which a
// Claim can lose.
func caseLosingClaim(t testing.TB, factory Factory) {
	r := newRig(t, factory)
	for state, prepare := range map[string]func(key store.Key, h holder){
		"in progress": func(store.Key, holder) {},
		"unresolved":  func(key store.Key, _ holder) { r.lapse(key) },
		"completed":   func(key store.Key, h holder) { r.do(complete(key, h, done), "recorded") },
	} {
		key := store.Key{Namespace: hourHold, ID: state}
		prepare(key, r.grant(key, "a"))
		before := r.do(inspect(key), "inspected")
		for range 3 {
			losing := claim(key, "b")
			losing.Lease, losing.Hold = time.Minute, true
			r.do(losing, state)
			losing.Fingerprint = fingerprintG
			r.refuse(losing, store.ErrFingerprintMismatch)
			losing.Fingerprint = store.Fingerprint{Version: 9, Digest: "g"}
			equal(r, "marked as not comparable", r.do(losing, state).Unchecked, true)
		}
		r.upkeep()
		equal(r, "the record that is "+state, r.do(inspect(key), "inspected"), before)
	}
}

func caseGhostLease(r *rig) {
	for _, effect := range []store.Effect{store.EffectNone, store.EffectUnknown} {
		key := store.Key{Namespace: hourTakeover, ID: string(rune('a' + effect))}
		h := r.grant(key, "a")
		r.do(release(key, h, effect), "released")
		r.refuse(claim(key, "a"), store.ErrStaleAttempt)
		r.upkeep()
		r.refuse(claim(key, "a"), store.ErrStaleAttempt)
		next := r.grant(key, "b")
		r.refuse(claim(key, "a"), store.ErrStaleAttempt)
		r.do(complete(key, next, done), "recorded")
		r.refuse(claim(key, "a"), store.ErrStaleAttempt)
	}
}

func caseNoTakeoverOfItself(r *rig) {
	for _, key := range []store.Key{takeoverKey, holdKey} {
		h := r.grant(key, "a")
		before := r.record(key)
		r.lapse(key)
		r.Clock.Advance(5 * time.Second)
		got := r.do(claim(key, "a"), "granted")
		equal(r, "fence", got.Fence, h.fence)
		equal(r, "attempt number", got.Number, 1)
		equal(r, "unsettled", got.Unsettled, false)
		equal(r, "lease remaining", got.Remaining, before.LeaseEnd.since(before.GrantedAt))
		equal(r, "takeovers", len(r.events(key, store.EventTakeover)), 0)
		r.do(claim(key, "b"), "in progress")
		r.do(complete(key, h, done), "recorded")
	}
}
