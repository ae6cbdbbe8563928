package region

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// abandon brings a move back to where it began, unless it has arrived. It does so with the regions
// that it reaches; the others hear of it when they are back. What the new home had copied, it
// forgets now, or before anything is moved there again.
func (v *move) abandon(ctx context.Context) error {
	switch v.now() {
	case placement.Flipped:
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"the keys of namespace %q have arrived in region %q; to have them back, move them back", v.Namespace, v.To))
	case placement.AtRest:
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"no move of namespace %q is under way%s, and nothing was changed: its keys live by %q (epoch %d)", v.Namespace, v.asFarAs(), v.current.Rule, v.current.Epoch))
	}
	if v.misses(v.decider()) {
		return v.overrule(ctx)
	}
	if v.now() != placement.Clearing || v.epoch > v.current.Epoch {
		if err := v.decide(ctx, v.next(store.MoveFlipped)); err != nil {
			return err
		}
	}
	if err := v.thaw(ctx); err != nil {
		return err
	}
	if err := v.decide(ctx, v.next(0)); err != nil {
		return err
	}
	for _, region := range append(v.sources(), v.To) {
		if err := v.spread(ctx, region); err != nil && !v.without(region, err) {
			return err
		}
	}
	later := ""
	if len(v.missing) > 0 {
		later = fmt.Sprintf("; %q could not be reached, and will hear of it", v.missing)
	}
	return v.reached("abandoned", "the keys live where they lived before"+later)
}

// thaw has the old homes serve, and the new one forget.
func (v *move) thaw(ctx context.Context) error {
	for _, region := range append(v.sources(), v.To) {
		err := v.spread(ctx, region)
		if err == nil && region == v.To {
			err = v.forget(ctx, region)
		}
		if err != nil && !v.without(region, err) {
			return also(err, "the keys live where they lived before in the regions that were reached; run this again")
		}
	}
	return nil
}

// leap is how far ahead the revision is of a placement that the new home decides: no other will
// have decided one of that revision.
const leap = 1000

// overrule abandons a move though the region that decides is out of reach, whatever that one has
// decided: the flip itself maybe. But a flip counts once the new home has it, and that one does
// not take it after a later revision, nor this one after the flip, whose epoch is higher. Where
// the decider did flip, it serves nothing until the move is abandoned once more with its store.
func (v *move) overrule(ctx context.Context) error {
	decider := v.decider()
	if v.misses(v.To) {
		return &store.Error{Sentinel: store.ErrHomeUnreachable, RetryAfter: time.Second, Detail: fmt.Sprintf(
			"whether the keys of namespace %q have arrived in region %q, nobody can say who was reached: that region cannot be, nor can %q, whose store decides; nothing was changed: "+
				"run it again once one of them answers", v.Namespace, v.To, decider)}
	}
	next := v.current
	next.Revision = (next.Revision/leap + 2) * leap
	next.Move = store.Move{To: v.To, Phase: store.MoveFlipped}
	if _, err := v.placeAt(ctx, v.To, next); err != nil {
		return err
	}
	if err := v.take(next); err != nil {
		return err
	}
	if err := v.thaw(ctx); err != nil {
		return err
	}
	return v.reached("abandoned", fmt.Sprintf("the keys live where they lived before; %q could not be reached: run this again once region %q answers, "+
		"until then the namespace is not moved, and its settings stay", v.missing, decider))
}

// without reports whether a region is out of reach, and notes it.
func (v *move) without(region string, err error) bool {
	if err == nil || !isOutage(err) {
		return false
	}
	if !v.misses(region) {
		v.missing = append(v.missing, region)
	}
	return true
}

func (v *move) misses(region string) bool { return slices.Contains(v.missing, region) }

func (v *move) asFarAs() string {
	if len(v.missing) == 0 {
		return ""
	}
	return fmt.Sprintf(" as far as is known without %q, which cannot be reached", v.missing)
}
