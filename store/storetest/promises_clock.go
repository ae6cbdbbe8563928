package storetest

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// wallSteps are steps of the wall clock that happen in the field: an NTP correction, a wrong time zone,
// a restored snapshot.
var wallSteps = []time.Duration{-time.Minute, time.Hour, -48 * time.Hour, 48 * time.Hour}

// slack is how far a steady clock may have corrected itself while d passed.
func slack(d time.Duration) time.Duration { return max(d/1000, 2*time.Microsecond) }

// promiseS7 steps the wall clock under a lease, a retention and an intent time.
func promiseS7(t testing.TB, factory Factory) {
	for _, step := range wallSteps {
		r := newRig(t, factory)
		const lease, retention = 10 * time.Second, 2 * time.Minute
		h := r.grant(takeoverKey, "a")
		r.completed(store.Key{Namespace: hourTakeover, ID: "finished"}, "a", done)
		r.Clock.StepWall(step)
		r.do(claim(takeoverKey, "b"), "in progress")
		r.Clock.Advance(lease - slack(lease))
		r.do(claim(takeoverKey, "b"), "in progress")
		r.do(complete(takeoverKey, h, done), "recorded")
		r.Clock.Advance(retention - lease - slack(retention))
		r.maintain()
		r.do(lookup(store.Key{Namespace: hourTakeover, ID: "finished"}), "found")
		r.Clock.Advance(3 * slack(retention))
		r.refuse(lookup(store.Key{Namespace: hourTakeover, ID: "finished"}), store.ErrKeyNotFound)
	}
}

func promiseS7Renew(t testing.TB, factory Factory) {
	for _, step := range wallSteps {
		r := newRig(t, factory)
		h := r.grant(takeoverKey, "a")
		end := r.record(takeoverKey).LeaseEnd
		for _, lease := range []time.Duration{time.Second, 10 * time.Second, time.Second, 20 * time.Second} {
			r.Clock.StepWall(step)
			c := renew(takeoverKey, h)
			c.Lease = lease
			got := r.do(c, "renewed")
			if got.LeaseEnd < end {
				r.Fatalf("a Renew by %v after a step of %v moved the lease end from %v back to %v", lease, step, end, got.LeaseEnd)
			}
			end = got.LeaseEnd
			r.Clock.Advance(time.Second)
		}
	}
}

// promiseS7Reopen steps the wall clock back while the store is closed.
func promiseS7Reopen(r *rig) {
	h := r.grant(takeoverKey, "a")
	r.Clock.Advance(5 * time.Second)
	now := r.now(takeoverKey)
	for range 3 {
		r.Clock.StepWall(-time.Hour)
		r.reopen()
		if later := r.now(takeoverKey); later < now {
			r.Fatalf("the store's time went from %v back to %v", now, later)
		}
		r.do(claim(takeoverKey, "b"), "in progress")
	}
	r.Clock.Advance(5*time.Second + slack(5*time.Second))
	r.refuse(renew(takeoverKey, h), store.ErrLeaseExpired)
}

func promiseL1(r *rig) {
	for _, lease := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		key := store.Key{Namespace: hourTakeover, ID: lease.String()}
		c := claim(key, "dead")
		c.Lease = lease
		r.do(c, "granted")
		r.Clock.Advance(lease - time.Microsecond)
		r.do(claim(key, "next"), "in progress")
		r.Clock.Advance(time.Microsecond)
		r.do(claim(key, "next"), "granted")
	}
}
