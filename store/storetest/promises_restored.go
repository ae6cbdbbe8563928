package storetest

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// promiseS1Restored goes back to a copy that knows of no lease that has not ended: one that was given
// before the floor, to the attempt that it knows or to another, may run for the longest that there is.
func promiseS1Restored(r *rig) {
	key := func(id string) store.Key { return store.Key{Namespace: store.DefaultNamespace, ID: id} }
	held := map[string]holder{}
	for _, id := range []string{"lapsed", "said unknown", "forced", "forced since", "resolved since", "gives up since", "completes"} {
		held[id] = r.grant(key(id), "a")
	}
	r.do(release(key("said unknown"), held["said unknown"], store.EffectUnknown), "released")
	r.do(force(key("forced")), "changed")
	r.Clock.Advance(10 * time.Second)
	floor := r.now(key("lapsed"))
	restored := machineSpaces()[store.DefaultNamespace]
	restored.floor = floor
	r.updateNamespace(restored.namespace(store.DefaultNamespace))
	r.reopen()

	r.do(release(key("gives up since"), held["gives up since"], store.EffectUnknown), "released")
	r.lapse(key("lapsed"))
	r.do(force(key("forced since")), "changed")
	r.do(resolve(key("resolved since"), nil), "changed")
	equal(r, "an operator's word since", r.do(claim(key("forced since"), "b"), "granted").Unsettled, true)
	equal(r, "an operator's word since", r.do(claim(key("resolved since"), "b"), "granted").Unsettled, false)
	end := floor.add(store.MaxLease)
	newer := floor.add(time.Minute + time.Microsecond) // the record is older all the same
	r.Clock.Advance(newer.since(r.now(key("lapsed"))))
	waits := []string{"lapsed", "said unknown", "forced", "gives up since", "completes"}
	for _, id := range waits {
		r.lost(key(id), end, newer)
	}
	r.refuse(renew(key("lapsed"), held["lapsed"]), store.ErrLeaseExpired)
	r.do(complete(key("completes"), held["completes"], done), "recorded")
	r.do(claim(key("completes"), "b"), "completed")

	r.Clock.Advance(end.since(r.now(key("lapsed"))) - time.Microsecond)
	again := claim(key("lapsed"), "a")
	equal(r, "the holder too", r.do(again, "in progress").LeaseEnd, end)
	r.lost(key("lapsed"), end, newer)
	r.upkeep()
	r.Clock.Advance(time.Microsecond)
	equal(r, "the holder, then", r.do(again, "granted").Unsettled, true)
	for _, id := range []string{"said unknown", "forced", "gives up since"} {
		equal(r, id+": unsettled", r.do(claim(key(id), "b"), "granted").Unsettled, true)
		r.lapse(key(id)) // this grant is newer than the floor
		r.do(claim(key(id), "c"), "granted")
	}
}

// lost claims a lapsed key, of whose leases one may have been forgotten, and looks it up: both say
// that it is in progress until then. It changes nothing.
func (r *rig) lost(key store.Key, end, intent instant) {
	r.Helper()
	before := r.record(key)
	other := claim(key, "b")
	for _, other.Intent = range []instant{0, intent} {
		got := r.do(other, "in progress")
		equal(r, key.ID+": lease end", got.LeaseEnd, end)
		equal(r, key.ID+": remaining", got.Remaining, end.since(r.now(key)))
	}
	found := r.do(lookup(key), "found")
	equal(r, key.ID+": looked up", fmt.Sprint(found.State, found.Lapsed, found.Unsettled, found.LeaseEnd), fmt.Sprint(store.StateInProgress, false, true, end))
	r.unchanged(key, before, "a Claim that waits for a lease that was forgotten")
}

// promiseS1RestoredHold: under HOLD an operator may have settled the key, and another attempt have it.
func promiseS1RestoredHold(r *rig) {
	r.grant(holdKey, "a")
	restored := machineSpaces()[hourHold]
	restored.floor = r.now(holdKey)
	r.updateNamespace(restored.namespace(hourHold))
	r.lapse(holdKey)
	end := restored.floor.add(store.MaxLease)
	r.do(claim(holdKey, "b"), "unresolved")
	equal(r, "the holder", r.do(claim(holdKey, "a"), "in progress").LeaseEnd, end)
	equal(r, "looked up", r.do(lookup(holdKey), "found").Lapsed, true)
	r.Clock.Advance(end.since(r.now(holdKey)))
	r.do(claim(holdKey, "b"), "unresolved")
	r.refuse(claim(holdKey, "a"), store.ErrAttemptTooLong)
}

// promiseS1Lifted: as long as a lease may run that was forgotten, no floor is lifted unless it is
// said that none does.
func promiseS1Lifted(r *rig) {
	r.Clock.Advance(time.Hour)
	begun := beginning(r, r.Clock.Wall().UTC())
	last := begun.Now.Add(store.MaxLease - time.Microsecond)
	for _, req := range []store.LiftRecoveryRequest{{Namespace: store.DefaultNamespace, Reason: "r"}, {ForNew: true, Reason: "r"}} {
		_, err := r.LiftRecovery(r.ctx, req)
		r.refusedAs("lifted at once", err, store.ErrNotConfirmed)
	}
	if _, err := r.LiftRecovery(r.ctx, store.LiftRecoveryRequest{Namespace: hourTakeover, LeasesEnded: true, Reason: "r"}); err != nil {
		r.Fatalf("confirmed: %v", err)
	}
	r.Clock.Advance(last.Sub(r.now(takeoverKeyOf(r)).time()))
	for _, want := range []string{"NOT_CONFIRMED", ""} {
		for _, req := range []store.LiftRecoveryRequest{{Namespace: store.DefaultNamespace, Reason: "r"}, {ForNew: true, Reason: "r"}} {
			if _, err := r.LiftRecovery(r.ctx, req); want == "" && err != nil || want != "" && reasonOf(err) != want {
				r.Fatalf("%+v: %v, want %q", req, err, want)
			}
		}
		r.Clock.Advance(time.Microsecond)
	}
}

// takeoverKeyOf has takeoverKey granted, by which the store's clock can be read.
func takeoverKeyOf(r *rig) store.Key {
	r.Helper()
	r.do(claim(takeoverKey, "a"), "granted")
	return takeoverKey
}
