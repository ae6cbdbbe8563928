package region

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// abandon brings a move back to where it began, unless it has arrived. The store that decides is
// needed for it; of the others those that can be reached take part, and the rest hear of it when they
// are back. What the new home had copied, it forgets now, or before anything is moved there again.
func (v *move) abandon(ctx context.Context) error {
	switch now := v.now(); {
	case now != placement.AtRest && v.arrived():
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"the keys of namespace %q have arrived in region %q; to have them back, move them back", v.Namespace, v.To))
	case now == placement.AtRest:
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"no move of namespace %q is under way%s, and nothing was changed: its keys live by %q (epoch %d)", v.Namespace, v.asFarAs(), v.current.Rule, v.current.Epoch))
	}
	if v.misses(v.decider()) {
		return v.nobodyDecides()
	}
	if v.now() != placement.Clearing {
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

// nobodyDecides is the refusal while the store is away that decides: it may have decided by now that
// the keys have left, or live elsewhere, and nobody else's word holds against it.
func (v *move) nobodyDecides() error {
	return &store.Error{Sentinel: store.ErrHomeUnreachable, RetryAfter: time.Second, Detail: fmt.Sprintf(
		"whether the keys of namespace %q have left for region %q, the store of region %q decides, and that cannot be reached, or is home to no keys yet; nothing was changed: "+
			"run it again once it answers, or once another one was accepted in its place (idemd region accept)", v.Namespace, v.To, v.decider())}
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
