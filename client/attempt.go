package client

import (
	"context"
	"crypto/rand"
	"sync"
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
	// Since is when the first attempt was granted that may have acted, by idemd's clock: this one or, if
	// it is Unsettled, an earlier one. No step of the intent was taken before; see [Attempt.StepTime]. It is
	// [store.LongAgo] where that is not known, as of a server that does not say it.
	Since time.Time

	lease    *lease
	begun    time.Time // Since, by this process's clocks
	outer    *Attempt  // in which this one is taken; nil if it is in none
	observed bool
	steps    steps
}

// steps are the keys that an attempt was asked for, and whether idemd further on has refused what was
// asked for under them the last time.
type steps struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (s *steps) add(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[string]bool{}
	}
	if _, have := s.keys[key]; !have {
		s.keys[key] = false
	}
	return key
}

func (s *steps) have(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, have := s.keys[key]
	return have
}

func (s *steps) answered(key string, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, have := s.keys[key]; have {
		s.keys[key] = refused
	}
}

func (s *steps) refused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, refused := range s.keys {
		if refused {
			return true
		}
	}
	return false
}

// Deadline is until when the right to act is certain, by this process's own clock. While
// the function runs it moves on with each renewal; past it the context is cancelled.
func (a *Attempt) Deadline() time.Time { return a.lease.until() }

// DownstreamKey derives the key for a step of this intent at another system: the same for
// every attempt, another one for another intent or step. It is Downstream of package
// client/key, of the attempt's key: 64 hexadecimal digits. Pass it to the system that is called, in the
// field or header that it has for it; for a gRPC call of a guarded service [StepKey] does that, and
// SetStepKey of package idemhttp for one of HTTP. A [Do] in this attempt with the key as its ID is a step
// too, and has StepTime as its intent time.
func (a *Attempt) DownstreamKey(step string) string {
	return a.steps.add(keys.Downstream(a.Key, step))
}

// StepTime is the intent time of this intent's steps: Since, or earlier if this machine's clock is behind that
// of idemd, for whoever takes the step may have another idemd. It is zero where Since is not known, and
// under [Observe], where steps are taken again whatever was recorded.
func (a *Attempt) StepTime() time.Time {
	here := a.begun.Round(0) // by the wall clock
	switch {
	case a.observed || a.Since.Equal(store.LongAgo):
		return time.Time{}
	case here.Before(a.Since):
		return here
	default:
		return a.Since
	}
}

// StepAnswered says how a step ended that was asked for under a key of [Attempt.DownstreamKey]: refused, if
// idemd further on did not say what came of it, so that nobody knows whether it was taken. As long as one is, no
// failure of this attempt is a final answer, whatever it says: a handler may take KEY_EXPIRED for a
// "declined". A success is, and so is what [NoEffect] marks. [UnaryClientInterceptor], Transport of package
// idemhttp and [Do] say it of the steps that they are asked for; say it of others. Other keys are ignored.
func (a *Attempt) StepAnswered(key string, refused bool) {
	for ; a != nil; a = a.outer {
		a.steps.answered(key, refused)
	}
}

// StepRefused reports whether a step was refused; see [Attempt.StepAnswered].
func (a *Attempt) StepRefused() bool { return a.steps.refused() }

// StepKey gives one gRPC call that guarded code makes, in a handler or in the function of [Do],
// the key for that step of its intent: [Attempt.DownstreamKey], whichever attempt makes the
// call. It is [Key] with that, and as Key needs [UnaryClientInterceptor]; a call without the
// interceptor carries no key, so there put the DownstreamKey into the outgoing metadata
// [MetadataKey]. If ctx is in no attempt (see [AttemptFrom]) the call gets no key from it, and
// the interceptor draws one.
//
// The call carries [Attempt.StepTime] too, as [MetadataIntentTime], unless its metadata has one of its own:
// an intent may be unsettled for longer than the service further on keeps the step's outcome, and
// then that refuses the step ([store.ErrKeyExpired]) and does not take it again. So that this does not
// happen, let services further on keep outcomes for as long as this one may be repeated, and for longer
// than its longest attempt takes.
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

// stepOf is the attempt that a key is a step of, among those that ctx is in; nil if it is of none.
func stepOf(ctx context.Context, key string) *Attempt {
	a, _ := AttemptFrom(ctx)
	for a != nil && !a.steps.have(key) {
		a = a.outer
	}
	return a
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
