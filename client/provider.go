package client

import (
	"context"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// ProviderKeys says that [Do]'s function gives a system of somebody else a key for what it
// does ([Attempt.DownstreamKey]), and that this system keeps such a key for at least
// retention after it first saw it: a repeat under the key is answered there, and does not act
// again. Take what its owner promises, not what was seen. If fn calls several, it is the
// shortest retention of them.
//
// It decides what happens when an earlier attempt may have acted ([Attempt.Unsettled]):
//
//   - [Recover] finds that it did: that is the outcome. That it did not: fn runs, however
//     long ago it was.
//   - Recover cannot tell (an error), or there is none: fn runs, under the same downstream
//     key, as long as the other system knows that. Past it nothing is sent: without Recover
//     Do returns [store.ErrKeyUnresolved], with it the error of looking it up. The key
//     stays unsettled, so every repeat is told the same until a look-up tells or an operator
//     resolves it.
//
// How old the key may be is counted from [Attempt.Since], when the first attempt was granted that may
// have sent it. A minute less than retention counts, for clocks that differ.
func ProviderKeys(retention time.Duration) DoOption {
	return doOption(func(o *doOptions) { o.keys = providerKeys{given: true, retention: retention} })
}

// ProviderKeys returns the hook for a handler that gives the system of somebody else a key for
// what it does; see [ProviderKeys]. Of RecoverHook{} it makes a hook that cannot look anything
// up.
func (h RecoverHook) ProviderKeys(retention time.Duration) RecoverHook {
	h.keys = providerKeys{given: true, retention: retention}
	return h
}

// providerKeys is how long a system of somebody else keeps the keys that it is sent.
type providerKeys struct {
	given     bool
	retention time.Duration
}

func (k providerKeys) check() error {
	if k.given && k.retention <= store.MaxSkew {
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"ProviderKeys was given a retention of %v; it must be more than %v, by which clocks may differ", k.retention, store.MaxSkew))
	}
	return nil
}

// mayRepeat returns why an attempt must not act that does not know what an earlier one did;
// nil if it may. lookup is the error of finding out; nil if nobody could be asked.
func (a *Attempt) mayRepeat(ctx context.Context, k providerKeys, lookup error) error {
	known := k.given && !a.forgotten(k) // there, under the key
	switch {
	case lookup == nil && (known || !k.given): // it is told to check
		return nil
	case lookup != nil && known && ctx.Err() == nil:
		return nil
	case lookup != nil:
		return lookup
	default:
		return store.Refuse(store.ErrKeyUnresolved, fmt.Sprintf(
			"an earlier attempt may have acted, up to %v ago, and the other system keeps keys for %v; %s",
			time.Since(a.begun).Round(time.Second), k.retention, howToSettle))
	}
}

const howToSettle = "look it up there by your own reference, then resolve the key with what you found"

// forgotten reports whether the other system may not know the key any more that the first
// attempt gave it.
func (a *Attempt) forgotten(k providerKeys) bool {
	return time.Since(a.begun) >= k.retention-store.MaxSkew
}
