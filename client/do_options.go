package client

import (
	"context"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// A DoOption sets how [Do] goes about one intent.
type DoOption interface{ applyDo(*doOptions) }

type doOption func(*doOptions)

func (f doOption) applyDo(o *doOptions) { f(o) }

type doOptions struct {
	claim  store.ClaimRequest
	found  any // a FoundFunc of Do's type
	keys   providerKeys
	first  any // a firstValue of Do's type
	notify func(Event)
}

// Lease sets how long the key is held without a renewal, 1 s to 15 min: how long others
// wait after this process died. The default is the namespace's.
func Lease(d time.Duration) DoOption {
	return doOption(func(o *doOptions) { o.claim.Lease = d })
}

// Hold asks that nobody acts after this attempt if what it did is unknown, before a person
// has settled it. Without it the namespace's lapse policy stands. That is often: a caller
// whose deadline passes, or who goes away, ends whoever acts with an error that proves
// nothing, and the key needs a person then. So give callers more time than acting takes.
func Hold() DoOption {
	return doOption(func(o *doOptions) { o.claim.Hold = true })
}

// Wait sets how long to wait for another attempt that holds the key, at most 5 min. By
// default Do returns [store.ErrKeyInProgress] at once.
func Wait(d time.Duration) DoOption {
	return doOption(func(o *doOptions) { o.claim.Wait = d })
}

// IntentTime says when the intent was first made, the same on every repeat. With it, a
// repeat that comes after retention is refused ([store.ErrKeyExpired]) and not taken for new.
// A key that New of package client/key drew has it in it: IntentTime(key.Time(id)). Zero means that it is not known.
func IntentTime(t time.Time) DoOption {
	return doOption(func(o *doOptions) { o.claim.IntentTime = t })
}

// FoundFunc finds out, by the caller's own reference, whether an earlier attempt acted. If
// it did, found is true and the value is what came of it. An error leaves it unknown.
type FoundFunc[T any] func(ctx context.Context, a *Attempt) (value T, found bool, err error)

// Recover has f find out what an earlier attempt did whenever that is unknown, before
// [Do]'s function runs; which it does only if nothing was found. T must be Do's.
func Recover[T any](f FoundFunc[T]) DoOption {
	return doOption(func(o *doOptions) { o.found = f })
}

func newDoOptions[T any](opts []DoOption) (doOptions, FoundFunc[T], error) {
	var o doOptions
	if err := checkValueType[T](); err != nil {
		return o, nil, err
	}
	for _, opt := range opts {
		opt.applyDo(&o)
	}
	found, ok := o.found.(FoundFunc[T])
	if o.found != nil && !ok {
		return o, nil, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("Recover was given a %T; Do needs a %T", o.found, found))
	}
	return o, found, o.keys.check()
}
