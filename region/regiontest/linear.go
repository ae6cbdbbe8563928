package regiontest

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/store"
)

// LongLease never ends while a test runs. The histories of keys that are claimed with nothing
// else are checked for an order of all calls that gives these answers.
const LongLease = 15 * time.Minute

// linearTimeout is for one key.
const linearTimeout = 20 * time.Second

func (k *keyHistory) checkLinear() {
	if slices.ContainsFunc(k.calls, func(c call) bool { return c.Op == opClaim && c.Lease != LongLease }) {
		return
	}
	var operations []porcupine.Operation
	for i, c := range join(k.calls) {
		o := porcupine.Operation{ClientId: i, Input: c, Call: int64(c.Sent), Return: int64(c.Answered)}
		if c.unknown() {
			o.Return = math.MaxInt64
		}
		operations = append(operations, o)
	}
	result, _ := porcupine.CheckOperationsVerbose(linearModel, operations, linearTimeout)
	if result != porcupine.Ok {
		k.fault("linear: no order of the calls gives these answers (%s)", result)
	}
}

// join makes one call of those that were sent again until they were answered, and leaves out
// what did nothing. What has no answer to the end makes the check slow: any moment must be tried.
func join(calls []call) []*call {
	type what struct {
		op      op
		attempt string
		fence   int64
		outcome string
		effect  store.Effect
	}
	var joined []*call
	open := map[what]*call{}
	for _, c := range calls {
		id := what{c.Op, c.Attempt, c.Fence, c.Outcome, c.Effect}
		before := open[id]
		switch {
		case c.nothingDone(), c.unknown() && (c.Op == opLookup || c.Op == opRenew), c.unknown() && before != nil:
			continue
		case before == nil || c.Op == opClaim && c.Told.Kind != granted: // the claim may still arrive
			joined = append(joined, &c)
			if c.unknown() {
				open[id] = &c
			}
			continue
		}
		sent := before.Sent
		*before = c
		before.Sent, before.Again = sent, true
		delete(open, id)
	}
	return joined
}

var linearModel = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) { return s.(state).step(input.(*call)) },
}

// state is a record of a key whose leases do not run out, by the table.
type state struct {
	phase     phase
	attempt   string
	fence     int64 // 0: not known, but above floor
	floor     int64
	number    int
	unsettled bool
	ended     string // the last attempts that ended, each with a line feed
	released  store.Effect
	outcome   string
}

type phase uint8

const (
	absent phase = iota
	holds
	lapses
	isReleased
	isCompleted
)

// step reports whether the call may have been answered so, and what the record is afterwards.
// A call whose answer is not known may have any.
func (s state) step(c *call) (bool, state) {
	switch c.Op {
	case opClaim:
		return s.claim(c)
	case opLookup:
		s = s.learn(c.Told.Fence)
		return s.lookup(c), s
	case opRenew:
		next, refusal := s.settle(c)
		return matches(c, refusal), next
	}
	next, refusal := s.settle(c)
	switch {
	case c.unknown():
		return true, next
	case c.Again && refusal == nil && errors.Is(c.Err, store.ErrStaleFence):
		return true, next // it was done when it was first sent, and refused when it was sent again
	}
	return matches(c, refusal), next
}

func matches(c *call, refusal error) bool {
	if refusal == nil {
		return c.Err == nil
	}
	return errors.Is(c.Err, refusal)
}

func (s state) claim(c *call) (bool, state) {
	switch {
	case slices.Contains(strings.Split(s.ended, "\n"), c.Attempt):
		return c.unknown() || errors.Is(c.Err, store.ErrStaleAttempt), s
	case s.phase == isCompleted:
		s = s.learn(c.Told.Fence)
		return c.unknown() || c.Told.Kind == completed && c.Told.Fence == s.fence && c.Told.Outcome == s.outcome, s
	case s.phase == holds && s.attempt != c.Attempt:
		return c.unknown() || c.Told.Kind == inProgress, s
	case s.phase == holds:
		if c.unknown() {
			return true, s
		}
		s = s.learn(c.Told.Fence)
		return c.Told.Kind == granted && c.Told.Fence == s.fence && c.Told.Number == s.number && c.Told.Unsettled == s.unsettled, s
	}
	return s.grant(c)
}

func (s state) grant(c *call) (bool, state) {
	next := state{
		phase: holds, attempt: c.Attempt, fence: c.Told.Fence, floor: max(s.floor, s.fence), number: s.number + 1,
		unsettled: s.phase == lapses, ended: s.ended,
	}
	if c.unknown() {
		next.fence = 0
		return true, next
	}
	t := c.Told
	return t.Kind == granted && t.Fence > next.floor && t.Number == next.number && t.Unsettled == next.unsettled && t.Previous == s.fence, next
}

// learn takes the fence from an answer, if it is not known yet.
func (s state) learn(fence int64) state {
	if s.fence == 0 && fence > s.floor {
		s.fence = fence
	}
	return s
}

// settle is Renew, Complete and Release: what the record is then, or the refusal.
func (s state) settle(c *call) (state, error) {
	if s.phase == absent {
		return s, store.ErrKeyNotFound
	}
	if c.Attempt == s.attempt {
		s = s.learn(c.Fence)
	}
	if c.Attempt != s.attempt || c.Fence != s.fence {
		return s, store.ErrStaleFence
	}
	switch c.Op {
	case opComplete:
		return s.complete(c)
	case opRelease:
		return s.release(c)
	}
	switch {
	case s.phase == isCompleted:
		return s, store.ErrAlreadyCompleted
	case s.released != 0:
		return s, store.ErrStaleAttempt
	}
	return s, nil
}

func (s state) complete(c *call) (state, error) {
	switch {
	case s.phase == isCompleted && s.outcome == c.Outcome:
		return s, nil
	case s.phase == isCompleted:
		return s, store.ErrAlreadyCompleted
	case s.released == store.EffectNone:
		return s, store.ErrStaleAttempt
	}
	s.phase, s.outcome, s.unsettled, s.released = isCompleted, c.Outcome, false, 0
	s.ended = strings.ReplaceAll(s.ended, s.attempt+"\n", "")
	return s, nil
}

func (s state) release(c *call) (state, error) {
	switch {
	case s.phase == isCompleted:
		return s, store.ErrAlreadyCompleted
	case s.released == c.Effect:
		return s, nil
	case s.released != 0:
		return s, store.ErrStaleAttempt
	}
	s.released = c.Effect
	s.phase = lapses
	if c.Effect == store.EffectNone && !s.unsettled {
		s.phase = isReleased
	}
	s.ended = ending(s.ended, s.attempt)
	return s, nil
}

// ending adds an attempt to the last eight that ended.
func ending(ended, attempt string) string {
	ended += attempt + "\n"
	if strings.Count(ended, "\n") > 8 {
		_, ended, _ = strings.Cut(ended, "\n")
	}
	return ended
}

func (s state) lookup(c *call) bool {
	if s.phase == absent {
		return errors.Is(c.Err, store.ErrKeyNotFound)
	}
	t := c.Told
	if c.Err != nil || t.Fence != s.fence || t.Number != s.number {
		return false
	}
	switch s.phase {
	case isCompleted:
		return t.State == store.StateCompleted && t.Outcome == s.outcome
	case isReleased:
		return t.State == store.StateReleased
	}
	return t.State == store.StateInProgress && t.Lapsed == (s.phase == lapses) && t.Unsettled == (s.unsettled || t.Lapsed)
}
