package storetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// promiseS8 compares what a wrong fingerprint is told about records that differ in
// everything else: it must be the same, and nothing of the record.
func promiseS8(t testing.TB, factory Factory) {
	secret := &store.Outcome{Status: []byte("secret-status"), Body: []byte("secret-body"), BodyType: "secret-type",
		Header: []store.MetadataEntry{{Name: "secret-name", Value: []byte("secret-value")}}}
	var first error
	for state, prepare := range map[string]func(r *rig, h holder){
		"in progress": func(*rig, holder) {},
		"lapsed":      func(r *rig, _ holder) { r.lapse(takeoverKey) },
		"unknown":     func(r *rig, h holder) { r.do(release(takeoverKey, h, store.EffectUnknown), "released") },
		"forced":      func(r *rig, _ holder) { r.do(force(takeoverKey), "changed") },
		"completed":   func(r *rig, h holder) { r.do(complete(takeoverKey, h, secret), "recorded") },
		"old": func(r *rig, h holder) {
			r.do(complete(takeoverKey, h, secret), "recorded")
			r.Clock.Advance(time.Minute)
		},
		"resolved": func(r *rig, _ holder) {
			r.lapse(takeoverKey)
			r.do(resolve(takeoverKey, secret), "changed")
		},
	} {
		r := newRig(t, factory)
		prepare(r, r.grant(takeoverKey, "a"))
		before := r.do(inspect(takeoverKey), "inspected")
		for _, wrong := range []store.Fingerprint{fingerprintG, {}, {Version: 1, Digest: "F"}, {Version: 1, Digest: "f\x00"}} {
			err := r.mismatch(state, wrong)
			if first == nil {
				first = err
			}
			if err.Error() != first.Error() || retryAfter(err) != retryAfter(first) {
				r.Fatalf("the text of a mismatch depends on the record:\n%v (%s)\n%v", err, state, first)
			}
			r.revealsNothing(wrong, state)
		}
		r.revealsNothing(store.Fingerprint{Version: 2, Digest: "f"}, state) // a Claim with it is a repeat
		equal(r, "the record and its events after mismatches", r.do(inspect(takeoverKey), "inspected"), before)
	}
}

// mismatch claims with a wrong fingerprint and returns the refusal.
func (r *rig) mismatch(state string, wrong store.Fingerprint) error {
	r.Helper()
	c := claim(takeoverKey, "b")
	c.Fingerprint = wrong
	answer, err := r.Claim(r.ctx, c.claimRequest())
	if !errors.Is(err, store.ErrFingerprintMismatch) {
		r.Fatalf("%s, fingerprint %+v: want a mismatch, got %v", state, wrong, err)
	}
	if answer != (store.ClaimAnswer{}) {
		r.Fatalf("%s: a mismatch carries an answer: %+v", state, answer)
	}
	if strings.Contains(err.Error(), "secret") {
		r.Fatalf("%s: a mismatch tells of the outcome: %v", state, err)
	}
	return err
}

// revealsNothing looks a key up with a wrong fingerprint.
func (r *rig) revealsNothing(wrong store.Fingerprint, state string) {
	r.Helper()
	c := lookup(takeoverKey)
	c.Fingerprint = wrong
	got := r.do(c, "found")
	equal(r, "outcome shown for a wrong fingerprint", got.Outcome, "")
	equal(r, state+": outcome withheld", got.Withheld, got.State == store.StateCompleted)
}

func retryAfter(err error) time.Duration {
	if refusal := new(store.Error); errors.As(err, &refusal) {
		return refusal.RetryAfter
	}
	return 0
}

// unknowns are the ways in which what happened becomes unknown. Each gets a key that has
// just been granted.
var unknowns = map[string]func(r *rig, key store.Key, h holder){
	"the lease ran out":      func(r *rig, key store.Key, _ holder) { r.lapse(key) },
	"the holder said so":     func(r *rig, key store.Key, h holder) { r.do(release(key, h, store.EffectUnknown), "released") },
	"an operator ended it":   func(r *rig, key store.Key, _ holder) { r.do(force(key), "changed") },
	"the attempt limit came": func(r *rig, key store.Key, _ holder) { r.Clock.Advance(time.Minute) },
	"its successor did nothing": func(r *rig, key store.Key, _ holder) {
		r.lapse(key)
		next := r.grant(key, "next")
		equal(r, "state after a Release as NONE of what was unsettled",
			r.do(release(key, next, store.EffectNone), "released").State, store.StateInProgress)
	},
}

func promiseS10(t testing.TB, factory Factory) {
	for cause, happen := range unknowns {
		r := newRig(t, factory)
		first := r.grant(takeoverKey, "a")
		granted := r.record(takeoverKey).GrantedAt
		happen(r, takeoverKey, first)
		r.upkeep()
		if found := r.do(lookup(takeoverKey), "found"); !found.Lapsed || !found.Unsettled {
			r.Fatalf("after %s: Lookup says lapsed %t, unsettled %t", cause, found.Lapsed, found.Unsettled)
		}
		for i, attempt := range attemptNames(10) {
			got := r.do(claim(takeoverKey, attempt), "granted")
			if !got.Unsettled || r.do(claim(takeoverKey, attempt), "granted") != got {
				r.Fatalf("after %s: grant %d is not marked as unsettled: %+v", cause, i, got)
			}
			equal(r, "unsettled since the first grant, after "+cause, got.UnsettledSince, granted)
			h := holder{attempt, got.Fence}
			switch i % 3 {
			case 0:
				r.do(release(takeoverKey, h, store.EffectNone), "released")
			case 1:
				r.do(release(takeoverKey, h, store.EffectUnknown), "released")
			case 2:
				r.lapse(takeoverKey)
			}
			r.Clock.Advance(time.Second)
		}
		r.do(complete(takeoverKey, r.grant(takeoverKey, "last"), done), "recorded")
		equal(r, "unsettled after an outcome", r.do(lookup(takeoverKey), "found").Unsettled, false)
	}
}

// promiseS10Hold waits far beyond every retention and bucket.
func promiseS10Hold(r *rig) {
	tightened := claim(takeoverKey, "a")
	tightened.Hold = true
	r.do(tightened, "granted")
	h := r.grant(holdKey, "a")
	for range 8 {
		r.Clock.Advance(40 * time.Minute)
		r.upkeep()
		r.do(claim(holdKey, "b"), "unresolved")
		r.do(claim(takeoverKey, "b"), "unresolved")
	}
	r.Clock.Advance(1000 * time.Hour)
	r.upkeep()
	equal(r, "fence of what is unresolved", r.do(claim(holdKey, "b"), "unresolved").Fence, h.fence)
	r.do(claim(takeoverKey, "b"), "unresolved")
	r.refuse(renew(holdKey, h), store.ErrLeaseExpired)
	r.do(resolve(holdKey, nil), "changed")
	equal(r, "unsettled after an operator said that nothing happened", r.do(claim(holdKey, "b"), "granted").Unsettled, false)
	r.do(resolve(takeoverKey, done), "changed")
	r.do(claim(takeoverKey, "b"), "completed")
}

func promiseS10Floor(r *rig) {
	known := r.completed(takeoverKey, "a", done)
	floor := r.now(takeoverKey)
	restored := machineSpaces()[hourTakeover]
	restored.floor = floor
	r.updateNamespace(restored.namespace(hourTakeover))
	r.reopen()
	unknown := claim(store.Key{Namespace: hourTakeover, ID: "forgotten"}, "a")
	r.refuse(unknown, store.ErrUnknownHistory)
	unknown.Intent = floor.add(restored.skew())
	r.refuse(unknown, store.ErrUnknownHistory)
	r.Clock.Advance(time.Minute)
	unknown.Intent = floor.add(time.Minute) // the skew may have been that when it was claimed
	r.refuse(unknown, store.ErrUnknownHistory)
	equal(r, "fence of what is known", r.do(claim(takeoverKey, "b"), "completed").Fence, known.fence)
	unknown.Intent = unknown.Intent.add(time.Microsecond)
	r.do(unknown, "granted")
	newer := store.Key{Namespace: hourTakeover, ID: "newer than the floor"}
	newerGrant := claim(newer, "a")
	newerGrant.Intent = unknown.Intent
	h := holder{"a", r.do(newerGrant, "granted").Fence}
	r.do(release(newer, h, store.EffectNone), "released")
	equal(r, "unsettled", r.do(claim(newer, "b"), "granted").Unsettled, false)
	r.updateNamespace(store.Namespace{Name: hourTakeover, Retention: restored.retention}) // without a floor
	r.refuse(call{Kind: opClaim, Key: store.Key{Namespace: hourTakeover, ID: "forgotten too"}, AttemptID: "a"}, store.ErrUnknownHistory)
	if _, err := r.LiftRecovery(r.ctx, store.LiftRecoveryRequest{Namespace: hourTakeover, LeasesEnded: true, Reason: "all settled"}); err != nil {
		r.Fatalf("LiftRecovery: %v", err)
	}
	unknown.Key.ID, unknown.Intent = "forgotten too", 0
	r.do(unknown, "granted")
}

// promiseS10FloorOverRecords goes back to an old copy of keys in every state that can be
// granted: what became of them since is unknown.
func promiseS10FloorOverRecords(r *rig) {
	key := func(id string) store.Key { return store.Key{Namespace: hourTakeover, ID: id} }
	held := map[string]holder{}
	for _, id := range []string{"released", "resolved", "said unknown", "taken over", "re-sent", "gave up since"} {
		held[id] = r.grant(key(id), "a")
	}
	r.do(release(key("released"), held["released"], store.EffectNone), "released")
	r.do(release(key("said unknown"), held["said unknown"], store.EffectUnknown), "released")
	r.lapse(key("taken over"))
	r.do(resolve(key("resolved"), nil), "changed")
	restored := machineSpaces()[hourTakeover]
	restored.floor = r.now(key("released"))
	r.updateNamespace(restored.namespace(hourTakeover))
	r.reopen()

	r.do(release(key("gave up since"), held["gave up since"], store.EffectNone), "released")
	for _, id := range []string{"released", "resolved", "gave up since"} {
		before := r.record(key(id))
		again := claim(key(id), "b")
		r.refuse(again, store.ErrUnknownHistory)
		r.unchanged(key(id), before, "a Claim that was refused")
	}
	for id, attempt := range map[string]string{"said unknown": "b", "taken over": "b", "re-sent": "a"} {
		r.do(claim(key(id), attempt), "in progress") // and granted later: see promiseS1Restored
	}
	r.Clock.Advance(time.Minute)
	for _, id := range []string{"released", "resolved", "gave up since"} {
		before := r.record(key(id))
		again := claim(key(id), "b")
		again.Intent = restored.floor.add(time.Minute)
		r.refuse(again, store.ErrUnknownHistory)
		r.unchanged(key(id), before, "a Claim that was refused")
	}
	again := claim(key("released"), "b")
	again.Intent = restored.floor.add(time.Minute + time.Microsecond)
	equal(r, "unsettled", r.do(again, "granted").Unsettled, false)
}

// promiseS10Intent sends the newest intent that is not in the future, and repeats it around
// the instant at which its outcome is forgotten.
func promiseS10Intent(r *rig) {
	ns := machineSpaces()[hourTakeover]
	c := claim(takeoverKey, "a")
	c.Intent = at(Start).add(ns.skew())
	h := holder{"a", r.do(c, "granted").Fence}
	r.do(complete(takeoverKey, h, done), "recorded")
	c.AttemptID = "b"
	r.Clock.Advance(ns.retention - time.Microsecond)
	r.do(c, "completed")
	for range 3 {
		r.Clock.Advance(time.Microsecond)
		r.refuse(c, store.ErrKeyExpired)
	}
}
