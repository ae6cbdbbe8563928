package client

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/grpc"

	keys "github.com/idemd/idemd/client/key" // variables are named key
	"github.com/idemd/idemd/store"
)

// Attempt is what the code that acts knows about its right to act. It may be used by any
// number of goroutines until the function it was given to returns.
type Attempt struct {
	Key store.Key
	ID  string
	// Fence grows with every grant of the key. Send it along with the effect: whoever
	// receives it remembers the highest one per key and refuses a lower one.
	Fence int64
	// Number counts the attempts of the intent from 1.
	Number int
	// Unsettled says that an earlier attempt may have acted and nobody knows: find out
	// first, by your own reference, then act only if it did not.
	Unsettled bool
	// PreviousFence is the fence of the attempt before; zero if there was none.
	PreviousFence int64

	lease *lease
	// intentMade is when the intent was first made, by this process's monotonic clock; zero if
	// that is not known.
	intentMade time.Time
}

// Deadline is until when the right to act is certain, by this process's own clock. While
// the function runs it moves on with each renewal; past it the context is cancelled.
func (a *Attempt) Deadline() time.Time { return a.lease.until() }

// DownstreamKey derives the key for a step of this intent at another system: the same for
// every attempt, another one for another intent or step. It is Downstream of package
// client/key, of the attempt's key: 64 hexadecimal digits. Pass it to the system that is called, in the
// field or header that it has for it; for a gRPC call of a guarded service [StepKey] does that.
func (a *Attempt) DownstreamKey(step string) string { return keys.Downstream(a.Key, step) }

// StepKey gives one gRPC call that guarded code makes, in a handler or in the function of [Do],
// the key for that step of its intent: [Attempt.DownstreamKey], whichever attempt makes the
// call. It is [Key] with that, and as Key needs [UnaryClientInterceptor]; a call without the
// interceptor carries no key, so there put the DownstreamKey into the outgoing metadata
// [MetadataKey]. If ctx is in no attempt (see [AttemptFrom]) the call gets no key from it, and
// the interceptor draws one.
//
// A step that is taken several times, such as one refund for each of three parcels, is several
// steps: their names must differ.
func StepKey(ctx context.Context, step string) grpc.CallOption {
	a, ok := AttemptFrom(ctx)
	if !ok {
		return grpc.EmptyCallOption{}
	}
	return Key(a.DownstreamKey(step))
}

type attemptKey struct{}

// AttemptFrom returns the attempt in which the function with this context runs. It is
// false, and the attempt nil, in code that idemd does not guard: in a handler whose call
// carries no key, or whose guard fails open. Under [Observe] there is one if the key was
// granted, and none for what would have been refused or answered with what is stored. So
// look at ok before using the attempt.
func AttemptFrom(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	return a, ok
}

// newAttemptID draws the name of one execution: 128 random bits.
func newAttemptID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return string(id[:])
}
