package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

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
}

// Deadline is until when the right to act is certain, by this process's own clock. While
// the function runs it moves on with each renewal; past it the context is cancelled.
func (a *Attempt) Deadline() time.Time { return a.lease.until() }

// DownstreamKey derives the key for a step of this intent at another system: the same for
// every attempt, another one for another intent or step. It is 64 hexadecimal digits:
// SHA-256 over "idemd.downstream.v1", namespace, scope, id, entity and step, each as its
// length in 8 big-endian bytes and its bytes.
func (a *Attempt) DownstreamKey(step string) string {
	var b []byte
	for _, part := range [...]string{"idemd.downstream.v1", a.Key.Namespace, a.Key.Scope, a.Key.ID, a.Key.Entity, step} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
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
