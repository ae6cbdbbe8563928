// Package step keeps what an attempt knows of the steps of its intent that it has asked others for.
package step

import (
	"context"
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
}

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
		if s.doubt || s.waiting > 0 {
			return true
		}
	}
	return false
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
	if !known {
		n.state(ask{key: key}).doubt = true
		return
	}
	for a, s := range n.asks {
		if a.key == key {
			s.doubt = false
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

// A Step is one that is asked for.
type Step struct {
	key    string
	within []*Notes // of the attempts that are in doubt as long as it is: the last one's step it is
}

// Of returns the step that a key is, among those of the attempts that ctx is in; false if it is none.
func Of(ctx context.Context, key string) (Step, bool) {
	within := in(ctx).upTo(key)
	return Step{key: key, within: within}, within != nil
}

// Of returns the step of this attempt that a key is, asked for in a context that need not be in the attempt.
func (n *Notes) Of(ctx context.Context, key string) Step {
	if s, ok := Of(ctx, key); ok {
		return s
	}
	return Step{key: key, within: []*Notes{n}}
}

// Made is the step's intent time; zero if it is not known.
func (s Step) Made() time.Time {
	if owner := s.within[len(s.within)-1]; owner.made != nil {
		return owner.made()
	}
	return time.Time{}
}

// Ask notes that the step is asked of somebody. Until it has ended it is in doubt.
func (s Step) Ask(of string) (ended func(End)) {
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
	n.state(a).waiting++
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
		s.doubt = false
	case Failed: // says nothing of what was asked before
	}
}
