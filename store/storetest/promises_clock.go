package storetest

import (
	"errors"
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

// promiseS10WallAhead makes intents after the wall clock has stepped ahead. They are not in
// the future, and are never taken for new again: not when their record would have expired by
// the store's clock, nor when that has caught up at a restart, nor under a longer retention.
func promiseS10WallAhead(r *rig) {
	ns := machineSpaces()[hourTakeover]
	waiting := store.Key{Namespace: hourTakeover, ID: "held"}
	r.grant(waiting, "a")
	r.Clock.StepWall(2 * time.Hour)
	c := claim(takeoverKey, "a")
	c.Intent = at(r.Clock.Wall())
	h := holder{"a", r.do(c, "granted").Fence}
	r.do(claim(waiting, "b"), "in progress") // nothing else goes by the wall clock
	r.do(complete(takeoverKey, h, done), "recorded")
	c.AttemptID = "b"
	longer := ns
	longer.retention = time.Hour
	for i := range 5 * 60 {
		switch i {
		case 1:
			r.updateNamespace(longer.namespace(hourTakeover))
		case 60:
			r.Clock.StepWall(-time.Hour)
		case 90:
			r.upkeep()
		}
		if got := c.perform(r.ctx, r.Backend); got.Kind != "completed" && !errors.Is(got.Refusal, store.ErrKeyExpired) {
			r.Fatalf("%d min after its intent a repeat gets %s %v", i, got.Kind, got.Refusal)
		}
		r.Clock.Advance(time.Minute)
	}
	r.refuse(c, store.ErrKeyExpired)
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
