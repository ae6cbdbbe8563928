package store

import (
	"cmp"
	"slices"
	"time"
)

// What a store answers about a key that it does not know hangs on the namespace's past: by which
// retentions outcomes were kept, and what the store may have forgotten. So the past goes along when
// the keys get another home.

// TakeHistory returns the namespace, sealed or flipped at the revision, with what an old home keeps of
// the namespace's past: what that one may have forgotten, this one does not know either, and what has
// expired there has expired. While it is sealed the floor is only noted, for the move may be abandoned
// (see [Namespace.Place]), and one of an earlier stay of the keys goes that was lifted elsewhere since. Once
// it has flipped, it is here that a floor is lifted: taking the same again changes nothing.
func (n Namespace) TakeHistory(revision int64, from Namespace) (Namespace, error) {
	if err := n.CheckMove(revision, MoveSealed, MoveFlipped); err != nil {
		return Namespace{}, err
	}
	n.PastRetentions = joinPast(n.PastRetentions, from.PastRetentions)
	if n.Placement.Move.Phase == MoveSealed {
		return n.noteFloor(&from), nil
	}
	for _, step := range floorSteps(from.RecoveryFloor, from.Begun()) {
		if !covered(n.Recovery, step) {
			n.RecoveryFloor = later(n.RecoveryFloor, step.Floor)
			n = n.withStep(step)
		}
	}
	return n, nil
}

// noteFloor returns the namespace with the floor noted that stands at an old home.
func (n Namespace) noteFloor(from *Namespace) Namespace {
	n = n.settledBy(from)
	for _, step := range floorSteps(from.RecoveryFloor, from.Begun()) {
		step.Kind = RecoveryCarried
		if !covered(n.since(false), step) {
			n = n.withStep(step)
		}
	}
	return n
}

// settledBy returns the namespace without its own floor if all that this is for came to the old home, by
// a move of the keys, and was lifted there.
func (n Namespace) settledBy(from *Namespace) Namespace {
	own, open := floorSteps(n.RecoveryFloor, n.Begun()), from.since(false)
	for _, step := range own {
		if !covered(from.Recovery, step) || covered(open, step) {
			return n
		}
	}
	if len(own) == 0 || len(open) == len(from.Recovery) {
		return n
	}
	n.RecoveryFloor = time.Time{}
	return n.withStep(from.Recovery[len(from.Recovery)-len(open)-1])
}

// floorSteps are the steps that tell another namespace what a floor is for that it gets, if one
// stands: the last has it.
func floorSteps(floor time.Time, begun []RecoveryStep) (steps []RecoveryStep) {
	if floor.IsZero() {
		return nil
	}
	for _, step := range begun {
		step.ForNew = false
		steps = append(steps, step)
	}
	if len(steps) == 0 { // it was set
		steps = append(steps, RecoveryStep{At: floor, Kind: RecoveryBegun, CompleteUntil: KnowsNothing, Actor: "idemd", Reason: "the namespace came with this floor"})
	}
	last := &steps[len(steps)-1]
	last.Floor = later(last.Floor, floor)
	return steps
}

// unsealed returns the namespace, which is sealed no more, without the floors that were noted: they
// stand from now on if its keys have moved here.
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
	return !n.RecoveryFloor.IsZero() && n.begunAsEmpty(false)
}

// begunAsEmpty reports whether one of the steps that tell what a floor is for says that nothing is known.
func (n *Namespace) begunAsEmpty(forNew bool) bool {
	return slices.ContainsFunc(n.begun(forNew), RecoveryStep.knowsNothing)
}

// Begun are the steps that tell what the standing floor is for, oldest first.
func (n *Namespace) Begun() []RecoveryStep { return n.begun(false) }

// begun are the steps that tell what the namespace's own floor is for, or that of those to come.
func (n *Namespace) begun(forNew bool) (steps []RecoveryStep) {
	for _, step := range n.since(forNew) {
		if step.Kind == RecoveryBegun && (step.ForNew || !forNew) {
			steps = append(steps, step)
		}
	}
	return steps
}

// since are the steps since the namespace's own floor was lifted last, or that of those to come.
func (n *Namespace) since(forNew bool) []RecoveryStep {
	for i := len(n.Recovery) - 1; i >= 0; i-- {
		if step := n.Recovery[i]; step.Kind == RecoveryLifted && step.ForNew == forNew {
			return n.Recovery[i+1:]
		}
	}
	return n.Recovery
}

// withStep returns the namespace with one more step. If there are too many the oldest goes without
// which no less, and no more, is said to be known.
func (n Namespace) withStep(step RecoveryStep) Namespace {
	n.Recovery = append(slices.Clone(n.Recovery), step)
	for i := 0; len(n.Recovery) > MaxRecoverySteps; {
		shorter := n
		shorter.Recovery = slices.Delete(slices.Clone(n.Recovery), i, i+1)
		if shorter.emptyFor() == n.emptyFor() {
			n = shorter
		} else {
			i++
		}
	}
	return n
}

// emptyFor says of what nothing is known, by the steps: of the namespace, of those to come, and of
// what a move is bringing.
func (n *Namespace) emptyFor() [3]bool {
	carried := slices.ContainsFunc(n.Recovery, func(s RecoveryStep) bool { return s.Kind == RecoveryCarried && s.knowsNothing() })
	return [...]bool{n.begunAsEmpty(false), n.begunAsEmpty(true), carried}
}

func (s RecoveryStep) knowsNothing() bool { return s.CompleteUntil.Equal(KnowsNothing) }

// covered reports whether one of the steps is the given one, with a floor that is no lower.
func covered(steps []RecoveryStep, s RecoveryStep) bool {
	return slices.ContainsFunc(steps, func(t RecoveryStep) bool {
		return t.Kind == s.Kind && t.At.Equal(s.At) && !t.Floor.Before(s.Floor) && t.CompleteUntil.Equal(s.CompleteUntil) &&
			t.Actor == s.Actor && t.Reason == s.Reason
	})
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

// joinPast returns both, by when they ended. Left out is what another one covers, one that is no longer and
// ended no earlier: of an intent the shortest counts that may have been in force since (see
// [Namespace.RetentionSince]). So each is longer than those before it.
func joinPast(a, b []PastRetention) (joined []PastRetention) {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(p, q PastRetention) int {
		return cmp.Or(q.Until.Compare(p.Until), cmp.Compare(p.Retention, q.Retention))
	})
	for _, p := range all {
		if n := len(joined); n == 0 || p.Retention < joined[n-1].Retention {
			joined = append(joined, p)
		}
	}
	slices.Reverse(joined)
	for len(joined) > MaxPastRetentions {
		joined = joinNearest(joined)
	}
	return joined
}

// joinNearest makes one of the two that are most alike: the shorter, as if it had been in force for as long as the
// longer. So an intent may be refused that would have been granted, and never the other way round.
func joinNearest(past []PastRetention) []PastRetention {
	nearest := 0
	for i := range past[1:] {
		if past[i+1].Retention-past[i].Retention < past[nearest+1].Retention-past[nearest].Retention {
			nearest = i
		}
	}
	past[nearest].Until = past[nearest+1].Until
	return slices.Delete(past, nearest+1, nearest+2)
}
