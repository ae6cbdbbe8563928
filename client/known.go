package client

import (
	"reflect"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// beginnings are the attempts of this process that act, of calls that may fail open.
var beginnings = struct {
	sync.Mutex
	acting map[pendingAt]*execution
}{acting: map[pendingAt]*execution{}}

// begin has it known that an attempt acts, until end is called.
func (x *execution) begin() (end func()) {
	if !x.failOpen || !reflect.ValueOf(x.store).Comparable() {
		return func() {}
	}
	at := pendingAt{x.store, x.request.Key}
	beginnings.Lock()
	defer beginnings.Unlock()
	beginnings.acting[at] = x
	return func() {
		beginnings.Lock()
		defer beginnings.Unlock()
		if beginnings.acting[at] == x {
			delete(beginnings.acting, at)
		}
	}
}

// beside returns the attempt of this process that acts under the key and has its lease; nil if none does.
func (x *execution) beside() *execution {
	if !reflect.ValueOf(x.store).Comparable() {
		return nil
	}
	beginnings.Lock()
	defer beginnings.Unlock()
	if other := beginnings.acting[pendingAt{x.store, x.request.Key}]; other != nil && time.Until(other.lease.until()) > 0 {
		return other
	}
	return nil
}

// known answers a claim that the store did not, and without which the call would act unguarded, from
// what this process itself knows of the key: an outcome that is not recorded yet, or an attempt that
// acts. If that is nothing it returns err.
func (x *execution) known(err error) (answer store.ClaimAnswer, _ error) {
	var made store.Fingerprint
	if p := pendingWith(x.store, x.request.Key); p != nil {
		x.unstored = true
		made, answer.Completed = p.print, &store.Completed{Outcome: p.outcome, Age: time.Since(p.since)}
	} else if other := x.beside(); other != nil {
		made, answer.InProgress = other.request.Fingerprint, &store.InProgress{RetryAfter: time.Second}
	} else {
		return answer, err
	}
	switch made.Compare(x.request.Fingerprint) {
	case store.MatchDifferent:
		return store.ClaimAnswer{}, store.Refuse(store.ErrFingerprintMismatch,
			"send the request that the key was made for, or make a new key for a new intent")
	case store.MatchIncomparable:
		answer.FingerprintIncomparable = true
	}
	return answer, nil
}
