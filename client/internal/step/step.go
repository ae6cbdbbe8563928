// Package step keeps what an attempt knows of the steps of its intent that it has asked others for.
package step

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"
)

// An End says how asking for a step ended.
type End int

const (
	// Unknown says that nobody knows whether it was taken. There was no answer, or one that says so, or of which
	// it is not certain who gave it.
	Unknown End = iota
	// Failed says that what was asked for failed, but nobody vouches that this holds for what was asked for
	// before under the key.
	Failed
	// Answered says that what has become of it is known, whenever it was asked for.
	Answered
)

// Notes are those of one attempt; the zero Notes are of one that is in no other. They may be used by any
// number of goroutines.
type Notes struct {
	outer *Notes           // of the attempt in which this one is taken; nil if there is none
	made  func() time.Time // the intent time of its steps

	mu   sync.Mutex
	own  map[string]bool // the keys that the attempt was asked for
	asks map[ask]*state
}

// An ask is a step and who is asked for it: one key may go to several, to each of whom it is another.
type ask struct{ key, of string }

// state is what is known of an ask.
type state struct {
	waiting int  // how many have asked and were not answered
	doubt   bool // one was not answered, or in a way that says nothing
	settled bool // what has become of it is known, whatever is asked or not answered beside
	said    bool // the code has found out by itself what had become of it when it said so
}

func (s *state) inDoubt() bool { return !s.settled && (s.doubt || s.waiting > 0) }

// Begin has the notes be those of an attempt in ctx. made is the intent time of its steps.
func (n *Notes) Begin(ctx context.Context, made func() time.Time) { n.outer, n.made = in(ctx), made }

type contextKey struct{}

// With returns a context in the attempt of these notes; nil for one in none.
func With(ctx context.Context, n *Notes) context.Context {
	return context.WithValue(ctx, contextKey{}, n)
}

func in(ctx context.Context) *Notes {
	n, _ := ctx.Value(contextKey{}).(*Notes)
	return n
}

// Own makes a key one of the attempt's steps.
func (n *Notes) Own(key string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.own == nil {
		n.own = map[string]bool{}
	}
	n.own[key] = true
	return key
}

func (n *Notes) owns(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.own[key]
}

// InDoubt reports whether of some step nobody knows whether it was taken, or not yet.
func (n *Notes) InDoubt() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.asks {
		if s.inDoubt() {
			return true
		}
	}
	return false
}

// Settled reports whether each of the keys was asked for, and whether of each and of all others is known what has become
// of it, also if an earlier attempt had asked.
func (n *Notes) Settled(keys []string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := map[string]bool{}
	for a, s := range n.asks {
		if !s.settled && (!s.said || s.inDoubt()) {
			return false
		}
		asked[a.key] = true
	}
	return !slices.ContainsFunc(keys, func(key string) bool { return !asked[key] })
}

// Doubt notes that something that the attempt has carried out under another key is in doubt.
func (n *Notes) Doubt() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state(ask{}).doubt = true
}

// Say notes what the attempt's code has found out by itself about a step, whoever was asked for it: that
// what became of it is known, or that it is not. Keys that are no steps are ignored.
func (n *Notes) Say(key string, known bool) {
	for _, n := range n.upTo(key) {
		n.say(key, known)
	}
}

// upTo returns these notes and those around them, up to those of the attempt that a key is a step of; none if
// it is of no attempt.
func (n *Notes) upTo(key string) (within []*Notes) {
	for ; n != nil; n = n.outer {
		within = append(within, n)
		if n.owns(key) {
			return within
		}
	}
	return nil
}

func (n *Notes) say(key string, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state(ask{key: key})
	for a, s := range n.asks {
		if a.key == key {
			s.said, s.doubt, s.settled = known, !known, s.settled && known
		}
	}
}

// state must be called under the lock.
func (n *Notes) state(a ask) *state {
	s := n.asks[a]
	if s == nil {
		s = &state{}
		if n.asks == nil {
			n.asks = map[ask]*state{}
		}
		n.asks[a] = s
	}
	return s
}

// A Step is one that is asked for. The zero Step is none, of which nothing is noted.
type Step struct {
	key    string
	within []*Notes // of the attempts that are in doubt as long as it is: the last one's step it is
}

// Of returns the step that a key is, among those of the attempts that ctx is in; the zero Step if it is none.
func Of(ctx context.Context, key string) Step {
	return Step{key: key, within: in(ctx).upTo(key)}
}

// IsOne reports whether it is a step.
func (s Step) IsOne() bool { return len(s.within) > 0 }

// Of returns the step of this attempt that a key is, asked for in a context that need not be in the attempt.
func (n *Notes) Of(ctx context.Context, key string) Step {
	if s := Of(ctx, key); s.IsOne() {
		return s
	}
	return Step{key: key, within: []*Notes{n}}
}

// Key is the step's.
func (s Step) Key() string { return s.key }

// Made is the step's intent time; zero if it is not known, or it is no step.
func (s Step) Made() time.Time {
	if !s.IsOne() {
		return time.Time{}
	}
	if owner := s.within[len(s.within)-1]; owner.made != nil {
		return owner.made()
	}
	return time.Time{}
}

// Ask notes that the step is asked of somebody. Until it has ended it is in doubt.
func (s Step) Ask(of string) (ended func(End)) {
	if !s.IsOne() {
		return func(End) {}
	}
	a := ask{key: s.key, of: of}
	for _, n := range s.within {
		n.begin(a)
	}
	return func(end End) {
		for _, n := range s.within {
			n.end(a, end)
		}
	}
}

func (n *Notes) begin(a ask) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.state(a)
	s.waiting, s.said = s.waiting+1, false
}

func (n *Notes) end(a ask, end End) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.state(a)
	s.waiting--
	switch end {
	case Unknown:
		s.doubt = true
	case Answered:
		s.settled = true
	case Failed: // says nothing of what was asked before
	}
}

// What a guard did with a key whose call it answers with an error.
const (
	// Completed says that the error is stored, for all that come.
	Completed = "completed"
	// Released says that the key is free again: nothing happened, and another call may act.
	Released = "released"
)

// Mark is by what a guard says that it has answered a call with an error, of a code or status, and what it did with
// the key. It holds for that key and that code alone: what is passed on or made of it by others vouches for nothing.
func Mark(did string, code int, key string) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%s %d %x", did, code, sum[:8])
}

// EndOf is what a mark says of the step of a key that was answered with an error of a code; false if it is not about that.
func EndOf(mark string, code int, key string) (End, bool) {
	switch mark {
	case Mark(Completed, code, key):
		return Answered, true
	case Mark(Released, code, key):
		return Failed, true
	default:
		return Unknown, false
	}
}
