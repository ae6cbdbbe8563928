package pgfault

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"
)

// Rule says what is done to which statements. Statements are matched by the text that the client sent, also
// where it was sent earlier, to be prepared: then with each execution. Rules are tried in the order they were
// added. The first that applies acts, and none acts after an …After action until the client has synchronised.
// Answer and Rewrite are apart from this: each of them that matches acts, where the text is sent. They count
// what is prepared, not what is executed.
type Rule struct {
	Match *regexp.Regexp // nil: every statement
	// Connect makes it a rule about connections in place of statements.
	Connect bool
	// Nth makes it act on the n-th match only, counted from 1 and over all connections. 0: on each.
	Nth int
	// Times is how often it acts at most. 0: without limit.
	Times int
	// Probability of acting on a match, drawn from Seed. 0: always.
	Probability float64
	Seed        uint64
	Do          Action
}

// Added is a rule at work.
type Added struct {
	rule    Rule
	random  *rand.Rand
	matched int
	chosen  int

	mu    sync.Mutex
	fired int
	more  chan struct{} // closed, and another put in its place, when fired grows
}

// Add puts a rule to work.
func (p *Proxy) Add(rule Rule) *Added {
	a := &Added{rule: rule, random: rand.New(rand.NewPCG(rule.Seed, 0)), more: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, a)
	return a
}

// Clear ends all rules. What is stalled stays so.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Remove ends one rule.
func (p *Proxy) Remove(a *Added) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = slices.DeleteFunc(p.rules, func(other *Added) bool { return other == a })
}

// Fired is how often the rule has acted: with …After, how often the server's answer has been kept from the client.
func (a *Added) Fired() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fired
}

// Wait returns when the rule has acted n times since it was added. It may be called from any goroutine.
func (a *Added) Wait(t testing.TB, n int) {
	t.Helper()
	for timeout := time.After(time.Minute); ; {
		a.mu.Lock()
		fired, more := a.fired, a.more
		a.mu.Unlock()
		if fired >= n {
			return
		}
		select {
		case <-more:
		case <-timeout:
			t.Errorf("pgfault: waited a minute for %v to act %d times: it did %d times", a.rule.Match, n, fired)
			return
		}
	}
}

func (a *Added) fire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fired++
	close(a.more)
	a.more = make(chan struct{})
}

// choose returns the rule that acts on a statement or a connection, or nil.
func (p *Proxy) choose(text string, connect bool) *Added {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *Added
	for _, a := range p.rules {
		if a.rule.Do.apply == nil || a.rule.Connect != connect || !a.matches(text) {
			continue
		}
		a.matched++
		if first == nil && a.acts() {
			first = a
		}
	}
	return first
}

// rewrite applies all rules that change texts.
func (p *Proxy) rewrite(text string) statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := statement{text: text, sent: text}
	for _, a := range p.rules {
		if a.rule.Do.rewrite == nil || a.rule.Connect || !a.matches(text) {
			continue
		}
		a.matched++
		if a.acts() {
			a.rule.Do.rewrite(&st, a.rule.Match)
			a.fire()
		}
	}
	return st
}

func (a *Added) matches(text string) bool {
	return a.rule.Match == nil || a.rule.Match.MatchString(text)
}

// acts decides about a match, which has been counted.
func (a *Added) acts() bool {
	r := a.rule
	if r.Nth > 0 && a.matched != r.Nth || r.Times > 0 && a.chosen >= r.Times ||
		r.Probability > 0 && a.random.Float64() >= r.Probability {
		return false
	}
	a.chosen++
	return true
}
