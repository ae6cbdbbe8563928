package store

import (
	"slices"
	"time"
)

// What a store answers about a key that it does not know hangs on the namespace's past: by which
// retentions outcomes were kept, and what the store may have forgotten. So the past goes along when
// the keys get another home.

// TakeHistory returns the namespace, sealed or flipped at the revision, with what an old home keeps of
// the namespace's past: what that one may have forgotten, this one does not know either, and what has
// expired there has expired. Taking the same again changes nothing. While it is sealed the floor is
// only noted, for the move may be abandoned: see [Namespace.Place].
func (n Namespace) TakeHistory(revision int64, from Namespace) (Namespace, error) {
	if err := n.CheckMove(revision, MoveSealed, MoveFlipped); err != nil {
		return Namespace{}, err
	}
	n.PastRetentions = joinPast(n.PastRetentions, from.PastRetentions)
	flipped := n.Placement.Move.Phase == MoveFlipped
	for _, step := range from.floorSteps() {
		if flipped {
			n.RecoveryFloor = later(n.RecoveryFloor, step.Floor)
		} else {
			step.Kind = RecoveryCarried
		}
		if !slices.ContainsFunc(n.Recovery, step.is) {
			n = n.withStep(step)
		}
	}
	return n, nil
}

// floorSteps are the steps that tell what the standing floor is for, if one stands: the last has it.
func (n *Namespace) floorSteps() (steps []RecoveryStep) {
	if n.RecoveryFloor.IsZero() {
		return nil
	}
	for _, step := range n.unsettled() {
		if step.Kind == RecoveryBegun {
			steps = append(steps, step)
		}
	}
	if len(steps) == 0 { // it was set
		steps = append(steps, RecoveryStep{At: n.RecoveryFloor, Kind: RecoveryBegun, CompleteUntil: KnowsNothing, Actor: "idemd", Reason: "the namespace was moved here with this floor"})
	}
	last := &steps[len(steps)-1]
	last.Floor = later(last.Floor, n.RecoveryFloor)
	return steps
}

// unsealed returns the namespace, which is sealed no more, without the floors that were noted: they
// stand from now on if it has moved.
func (n Namespace) unsealed(moved bool) Namespace {
	steps := n.Recovery
	n.Recovery = slices.DeleteFunc(slices.Clone(steps), func(s RecoveryStep) bool { return s.Kind == RecoveryCarried })
	if !moved {
		return n
	}
	for _, step := range steps {
		if step.Kind == RecoveryCarried {
			step.Kind = RecoveryBegun
			n.RecoveryFloor = later(n.RecoveryFloor, step.Floor)
			n = n.withStep(step)
		}
	}
	return n
}

// ForgotAll reports whether a floor stands before which nothing is known, whatever backup there was.
func (n *Namespace) ForgotAll() bool {
	return !n.RecoveryFloor.IsZero() && slices.ContainsFunc(n.unsettled(), func(step RecoveryStep) bool {
		return step.Kind == RecoveryBegun && step.CompleteUntil.Equal(KnowsNothing)
	})
}

// unsettled are the steps since the last lift: those that tell what the standing floor is for. What
// lifted one that still stands was about namespaces to come.
func (n *Namespace) unsettled() []RecoveryStep {
	for i := len(n.Recovery) - 1; i >= 0; i-- {
		if step := n.Recovery[i]; step.Kind == RecoveryLifted && !step.Floor.Equal(n.RecoveryFloor) {
			return n.Recovery[i+1:]
		}
	}
	return n.Recovery
}

func (s RecoveryStep) is(t RecoveryStep) bool {
	return s.Kind == t.Kind && s.At.Equal(t.At) && s.Floor.Equal(t.Floor) && s.CompleteUntil.Equal(t.CompleteUntil) &&
		s.Actor == t.Actor && s.Reason == t.Reason
}

// recentPast leaves out what concerns no key any more.
func recentPast(past []PastRetention, now time.Time) (recent []PastRetention) {
	for _, p := range past {
		if now.Sub(p.Until) <= TierMonth.MaxRetention() {
			recent = append(recent, p)
		}
	}
	return recent
}

// joinPast returns both, each retention with the last instant at which it was in force.
func joinPast(a, b []PastRetention) []PastRetention {
	joined := slices.Clone(a)
	for _, p := range b {
		i := slices.IndexFunc(joined, func(known PastRetention) bool { return known.Retention == p.Retention })
		if i < 0 {
			joined = append(joined, p)
		} else {
			joined[i].Until = later(joined[i].Until, p.Until)
		}
	}
	return joined
}
