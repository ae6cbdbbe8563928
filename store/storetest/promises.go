package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// promises are the promises that can be seen through a [store.Backend]. Left to others:
// S6 needs a crash and DATA_LOSS of S5 needs a damaged disk, which each backend's own
// tests make; S9 is the server's; L3 to L5 are about load, dependencies and the client.
var promises = []check{
	{"S1 one unexpired lease", on(promiseS1)},
	{"S1 one winner of a race", on(promiseS1Race)},
	{"S1 an attempt ends at its limit", on(promiseS1Limit)},
	{"S1 a lease that was forgotten", on(promiseS1Restored)},
	{"S1 a lease that was forgotten, under hold", on(promiseS1RestoredHold)},
	{"S1 a lease that was forgotten, and a lift", on(promiseS1Lifted)},
	{"S2 fences grow", on(promiseS2)},
	{"S2 fences grow while time stands still", on(promiseS2Standstill)},
	{"S2 fences grow when the wall clock went back", on(promiseS2WallBack)},
	{"S3 fence and attempt are needed", promiseS3},
	{"S4 an outcome stays", on(promiseS4)},
	{"S5 a replay is byte-identical", on(promiseS5)},
	{"S5 the size limit is exact", on(promiseS5Limit)},
	{"S7 a clock that steps expires nothing early", promiseS7},
	{"S7 Renew during a step never shortens", promiseS7Renew},
	{"S7 time goes on where it was", on(promiseS7Reopen)},
	{"S8 a mismatch reveals nothing", promiseS8},
	{"S10 unknown is marked", promiseS10},
	{"S10 HOLD holds for ever", on(promiseS10Hold)},
	{"S10 a recovery floor stands", on(promiseS10Floor)},
	{"S10 a floor covers records", on(promiseS10FloorOverRecords)},
	{"S10 an intent is not forgotten", on(promiseS10Intent)},
	{"S10 nor one by a wall clock ahead", on(promiseS10WallAhead)},
	{"S11 everything is linearizable", on(checkLinearizable)},
	{"L1 claimable at the lease's end", on(promiseL1)},
	{"L2 re-sent calls converge", promiseL2},
}

func promiseS1(r *rig) {
	h := r.grant(takeoverKey, "a")
	for {
		view := r.do(inspect(takeoverKey), "inspected")
		remaining := view.Record.LeaseEnd.since(view.Now)
		for _, pass := range []time.Duration{0, remaining / 2, remaining - remaining/2 - time.Microsecond} {
			r.Clock.Advance(pass)
			r.do(claim(takeoverKey, "b"), "in progress")
		}
		if view.Record.LeaseEnd == view.Record.Limit {
			break
		}
		r.do(renew(takeoverKey, h), "renewed")
	}
	r.refuse(renew(takeoverKey, h), store.ErrAttemptTooLong)
	r.lapse(takeoverKey)
	r.grant(takeoverKey, "b")
	r.refuse(renew(takeoverKey, h), store.ErrStaleFence)
	r.refuse(claim(takeoverKey, "a"), store.ErrStaleAttempt)
}

func promiseS1Race(r *rig) {
	for round := range 4 {
		key := store.Key{Namespace: hourTakeover, ID: string(rune('a' + round))}
		switch round {
		case 1:
			r.grant(key, "first")
			r.lapse(key)
		case 2:
			r.do(release(key, r.grant(key, "first"), store.EffectNone), "released")
		case 3:
			r.completed(key, "first", done)
			r.Clock.Advance(time.Hour)
		}
		granted, replies := r.race(key, attemptNames(50))
		equal(r, "winners of a race", len(granted), 1)
		for _, got := range replies {
			if got.Kind != "granted" && got.Kind != "in progress" {
				r.Fatalf("a loser was told %s %v", got.Kind, got.Refusal)
			}
		}
	}
}

// promiseS1Limit goes to the limit of an attempt that nobody took over.
func promiseS1Limit(r *rig) {
	inTime, late := takeoverKey, takeoverKey
	inTime.ID, late.ID = "in time", "late"
	h, l := r.grant(inTime, "a"), r.grant(late, "a")
	r.Clock.Advance(time.Minute) // the namespace's max attempt
	r.refuse(claim(inTime, "a"), store.ErrAttemptTooLong)
	r.refuse(renew(inTime, h), store.ErrLeaseExpired)
	r.do(complete(inTime, h, done), "recorded")
	r.Clock.Advance(time.Microsecond)
	before := r.record(late)
	r.refuse(complete(late, l, done), store.ErrAttemptTooLong)
	r.unchanged(late, before, "a Complete beyond the limit")
	kept := r.events(late, store.EventLateOutcome)
	equal(r, "late outcomes kept", len(kept), 1)
	equal(r, "late outcome", outcomeText(kept[0].Outcome), outcomeText(done))
	equal(r, "unsettled", r.do(claim(late, "b"), "granted").Unsettled, true)
}

// grows fails the test unless each fence is greater than the one before it.
func (r *rig) grows(fences []int64) {
	r.Helper()
	for i := range fences[1:] {
		if fences[i+1] <= fences[i] {
			r.Fatalf("fence %d follows fence %d (all: %v)", fences[i+1], fences[i], fences)
		}
	}
}

func promiseS2(r *rig) {
	var fences []int64
	take := func(attempt string) holder {
		h := r.grant(takeoverKey, attempt)
		fences = append(fences, h.fence)
		return h
	}
	r.do(release(takeoverKey, take("a"), store.EffectNone), "released")
	take("b")
	r.do(force(takeoverKey), "changed")
	fences = append(fences, r.record(takeoverKey).Fence)
	take("c")
	r.lapse(takeoverKey)
	r.do(resolve(takeoverKey, nil), "changed")
	fences = append(fences, r.record(takeoverKey).Fence)
	take("d")
	r.lapse(takeoverKey)
	r.reopen()
	r.do(complete(takeoverKey, take("e"), done), "recorded")
	r.Clock.Advance(2 * time.Minute)
	take("f")
	r.Clock.Advance(10 * time.Hour)
	r.upkeep()
	r.Clock.Advance(10 * time.Hour)
	r.upkeep()
	take("g")
	r.grows(fences)
}

// promiseS2Standstill makes more grants than there are microseconds.
func promiseS2Standstill(r *rig) {
	var fences []int64
	for _, attempt := range attemptNames(40) {
		h := r.grant(takeoverKey, attempt)
		r.do(release(takeoverKey, h, store.EffectNone), "released")
		fences = append(fences, h.fence)
		if len(fences)%10 == 0 {
			r.upkeep()
		}
	}
	r.grows(fences)
	r.Clock.Advance(2 * time.Minute)
	r.grows(append(fences, r.grant(takeoverKey, "last").fence))
}

func promiseS2WallBack(r *rig) {
	fences := []int64{r.completed(takeoverKey, "a", done).fence}
	r.Clock.Advance(10 * time.Hour)
	r.upkeep()
	fences = append(fences, r.completed(takeoverKey, "b", done).fence)
	for i := range 3 {
		r.Clock.StepWall(-20 * time.Hour)
		r.upkeep()
		r.Clock.Advance(2*time.Minute + time.Second)
		fences = append(fences, r.completed(takeoverKey, string(rune('c'+i)), done).fence)
	}
	r.grows(fences)
}

// promiseS3 tries every wrong pair of fence and attempt in every state.
func promiseS3(t testing.TB, factory Factory) {
	r := newRig(t, factory)
	for state, prepare := range map[string]func(store.Key, holder){
		"in progress": func(store.Key, holder) {},
		"lapsed":      func(key store.Key, _ holder) { r.lapse(key) },
		"completed":   func(key store.Key, h holder) { r.do(complete(key, h, done), "recorded") },
		"released":    func(key store.Key, h holder) { r.do(release(key, h, store.EffectNone), "released") },
		"unknown":     func(key store.Key, h holder) { r.do(release(key, h, store.EffectUnknown), "released") },
	} {
		key := store.Key{Namespace: hourTakeover, ID: state}
		h := r.grant(key, "a")
		prepare(key, h)
		before := r.record(key)
		for _, wrong := range []holder{{"a", h.fence + 1}, {"a", h.fence - 1}, {"b", h.fence}, {"b", 1}, {"A", h.fence}} {
			r.refuse(renew(key, wrong), store.ErrStaleFence)
			r.refuse(complete(key, wrong, other), store.ErrStaleFence)
			r.refuse(release(key, wrong, store.EffectNone), store.ErrStaleFence)
			r.refuse(release(key, wrong, store.EffectUnknown), store.ErrStaleFence)
		}
		r.unchanged(key, before, "operations with a wrong fence or attempt while it is "+state)
	}
}

func promiseS4(r *rig) {
	for _, key := range []store.Key{takeoverKey, holdKey} {
		h := r.completed(key, "a", done)
		before := r.record(key)
		assail := func() {
			r.Helper()
			r.refuse(complete(key, h, other), store.ErrAlreadyCompleted)
			r.refuse(complete(key, holder{"b", h.fence + 1}, other), store.ErrStaleFence)
			r.refuse(release(key, h, store.EffectNone), store.ErrAlreadyCompleted)
			r.refuse(release(key, h, store.EffectUnknown), store.ErrAlreadyCompleted)
			r.refuse(renew(key, h), store.ErrAlreadyCompleted)
			r.refuse(resolve(key, other), store.ErrNotLapsed)
			r.refuse(force(key), store.ErrNotHeld)
			r.do(complete(key, h, done), "recorded")
			equal(r, "outcome", r.do(claim(key, "b"), "completed").Outcome, outcomeText(done))
			equal(r, "outcome", r.do(claim(key, "a"), "completed").Outcome, outcomeText(done))
			r.unchanged(key, before, "what must not change it")
		}
		assail()
		shorter := machineSpaces()[key.Namespace]
		shorter.retention, shorter.hold = time.Minute, true
		r.updateNamespace(shorter.namespace(key.Namespace))
		r.upkeep()
		r.Clock.Advance(before.Retention / 2)
		assail()
		r.Clock.Advance(before.Retention - before.Retention/2 - time.Microsecond)
		r.upkeep()
		assail()
		r.Clock.Advance(time.Microsecond)
		r.refuse(lookup(key), store.ErrKeyNotFound)
	}
}

// strangeOutcomes hold what is easily lost on the way.
func strangeOutcomes() map[string]*store.Outcome {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	entries := []store.MetadataEntry{
		{Name: "z", Value: []byte("1")}, {Name: "a", Value: every}, {Name: "Z", Value: nil}, {Name: "z", Value: []byte("0")}, {Name: "z", Value: []byte("1")},
	}
	reversed := slices.Clone(entries)
	slices.Reverse(reversed)
	return map[string]*store.Outcome{
		"nothing":      {},
		"empty slices": {Status: []byte{}, Body: []byte{}, Header: []store.MetadataEntry{}, Trailer: []store.MetadataEntry{}},
		"every byte":   {Status: every, Body: slices.Concat(every, every), BodyType: "example.v1.Reply/é"},
		"metadata":     {Body: []byte{0}, Header: entries, Trailer: reversed},
		"only trailer": {Trailer: entries[:1]},
		"omitted":      {BodyType: "t", BodyOmitted: true},
		"largest":      {BodyType: "large", Body: largeBody(store.MaxOutcomeBytes - len("large"))},
	}
}

// largeBody is n bytes that do not compress well.
func largeBody(n int) []byte {
	body, x := make([]byte, n), uint32(1)
	for i := range body {
		x = x*1664525 + 1013904223
		body[i] = byte(x >> 24)
	}
	return body
}

func promiseS5(r *rig) {
	for name, outcome := range strangeOutcomes() {
		key := store.Key{Namespace: store.DefaultNamespace, ID: name}
		want := outcomeText(outcome)
		h := r.completed(key, "a", outcome)
		for range 2 {
			equal(r, name+" claimed", r.do(claim(key, "b"), "completed").Outcome, want)
			equal(r, name+" looked up", r.do(lookup(key), "found").Outcome, want)
			view := r.record(key)
			equal(r, name+" inspected", view.Outcome, want)
			equal(r, name+" digest", view.Digest, outcomeDigest(outcome))
			r.do(complete(key, h, outcome), "recorded")
			r.upkeep()
		}
	}
	key := store.Key{Namespace: store.DefaultNamespace, ID: "nothing"}
	h := holder{"a", r.record(key).Fence}
	r.do(complete(key, h, strangeOutcomes()["empty slices"]), "recorded")
	r.refuse(complete(key, h, &store.Outcome{Body: []byte{0}}), store.ErrAlreadyCompleted)
	key.ID = "metadata"
	swapped := strangeOutcomes()["metadata"]
	swapped.Header, swapped.Trailer = swapped.Trailer, swapped.Header
	r.refuse(complete(key, holder{"a", r.record(key).Fence}, swapped), store.ErrAlreadyCompleted)
}

func promiseS5Limit(r *rig) {
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	h := r.grant(key, "a")
	before := r.record(key)
	entry := []store.MetadataEntry{{Name: "n", Value: []byte("v")}}
	over := &store.Outcome{Status: []byte("s"), BodyType: "t", Header: entry, Trailer: entry, Body: largeBody(store.MaxOutcomeBytes - 5)}
	r.refuse(complete(key, h, over), store.ErrOutcomeTooLarge)
	r.unchanged(key, before, "a refused outcome")
	fits := *over
	fits.Body = fits.Body[1:]
	r.do(complete(key, h, &fits), "recorded")
	equal(r, "outcome", r.do(claim(key, "b"), "completed").Outcome, outcomeText(&fits))
}

// promiseL2 sends everything three times, with and without upkeep in between.
func promiseL2(t testing.TB, factory Factory) {
	r := newRig(t, factory)
	again := func(c call, kind string) reply {
		r.Helper()
		first := r.do(c, kind)
		before := r.do(inspect(c.Key), "inspected")
		for range 2 {
			r.upkeep()
			equal(r, "the answer to a "+string(c.Kind)+" sent again", r.do(c, kind), first)
		}
		equal(r, "the record after a "+string(c.Kind)+" sent again", r.do(inspect(c.Key), "inspected"), before)
		return first
	}
	for _, key := range []store.Key{takeoverKey, holdKey} {
		a := holder{"a", again(claim(key, "a"), "granted").Fence}
		again(renew(key, a), "renewed")
		again(release(key, a, store.EffectNone), "released")
		b := holder{"b", again(claim(key, "b"), "granted").Fence}
		again(release(key, b, store.EffectUnknown), "released")
		again(complete(key, b, done), "recorded")
		again(claim(key, "c"), "completed")
	}
}
