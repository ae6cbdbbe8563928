package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// maxBehind is how far the new home's clock may be behind an old one's. The namespace stays
// sealed until the new one has caught up, so that fences grow.
const maxBehind = time.Minute

// check refuses what cannot be meant.
func (v *move) check() error {
	if _, ok := v.Peers[v.To]; !ok && v.To != v.Here {
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("there is no region %q; %q are there", v.To, v.regions()))
	}
	if v.To != v.Here && !v.Abandon {
		return store.Refuse(store.ErrWrongRegion, fmt.Sprintf(
			"ask a server of region %q, which the keys are to go to; this one is of %q", v.To, v.Here))
	}
	if v.Patience < 0 {
		return store.Refuse(store.ErrInvalidArgument, "the patience is negative")
	}
	if v.Patience == 0 {
		v.Patience = DefaultPatience
	}
	return store.ValidateNamespaceName(v.Namespace)
}

// find sets current to the newest placement that was decided. Whoever decides what comes after
// a placement is one of the regions of its rule, so these are asked until there are no more. Who
// gives up a move makes do with those that answer: one of the others may be the reason for it.
func (v *move) find(ctx context.Context) error {
	toAsk := []string{v.Here, v.To}
	for i := 0; i < len(toAsk); i++ {
		ns, err := v.known(ctx, toAsk[i])
		if v.Abandon && v.without(toAsk[i], err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := v.hear(ns.Placement, toAsk[i]); err != nil {
			return err
		}
		for _, region := range v.rule.Regions() {
			if !slices.Contains(toAsk, region) {
				toAsk = append(toAsk, region)
			}
		}
	}
	if v.current == (store.Placement{}) {
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("namespace %q has no placement yet; it gets one once all regions have the same rule for it", v.Namespace))
	}
	return nil
}

func (v *move) known(ctx context.Context, region string) (store.Namespace, error) {
	party, err := v.party(region)
	if err != nil {
		return store.Namespace{}, err
	}
	return party.Namespace(ctx, v.Namespace)
}

// hear takes a placement up if it is newer.
func (v *move) hear(p store.Placement, region string) error {
	switch {
	case contradict(p, v.current):
		return store.Refuse(store.ErrWrongRegion, fmt.Sprintf(
			"region %q has another placement of namespace %q (epoch %d, revision %d) than the others (epoch %d, revision %d), and neither follows the other; nothing can be moved before that is settled",
			region, v.Namespace, p.Epoch, p.Revision, v.current.Epoch, v.current.Revision))
	case p.Revision > v.current.Revision:
		return v.take(p)
	}
	return nil
}

// take makes p the current placement.
func (v *move) take(p store.Placement) error {
	rule, err := placement.ParseRule(p.Rule)
	if err != nil {
		return &store.Error{Sentinel: store.ErrInternal, Detail: "the placement of the namespace is not understood; is this server older than others?", Cause: err}
	}
	v.current, v.rule = p, rule
	return nil
}

// fits refuses to take another move for the one that was asked for.
func (v *move) fits() error {
	if to := v.current.Move.To; to != "" && to != v.To {
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"namespace %q is on its way to region %q; let that move end, or abandon it", v.Namespace, to))
	}
	return nil
}

// next is the placement after the current one, with the move at the phase.
func (v *move) next(phase store.MovePhase) store.Placement {
	p := v.current
	p.Revision++
	p.Move = store.Move{}
	if phase != 0 {
		p.Move = store.Move{To: v.To, Phase: phase}
	}
	return p
}

// decide makes next the placement, unless another one was made it.
func (v *move) decide(ctx context.Context, next store.Placement) error {
	if _, err := v.placeAt(ctx, v.decider(), next); err != nil {
		return err
	}
	return v.take(next)
}

// raced says, of the refusal of what belongs to a placement that is not in force any more, who was
// faster.
func (v *move) raced(err error) error {
	if !errors.Is(err, store.ErrWrongRegion) {
		return err
	}
	return also(err, fmt.Sprintf("somebody else moves namespace %q too, or has abandoned the move; look at it, and run it again if it is still to be done", v.Namespace))
}

// decider is the region whose store decides what comes after the current placement.
func (v *move) decider() string { return v.rule.Regions()[0] }

// spread gives the regions the current placement.
func (v *move) spread(ctx context.Context, regions ...string) error {
	_, err := v.placeAll(ctx, regions)
	return err
}

// placeAll is spread with what the regions said.
func (v *move) placeAll(ctx context.Context, regions []string) (map[string]store.Placed, error) {
	all := map[string]store.Placed{}
	for _, region := range regions {
		placed, err := v.placeAt(ctx, region, v.current)
		if err != nil {
			return nil, err
		}
		all[region] = placed
	}
	return all, nil
}

func (v *move) placeAt(ctx context.Context, region string, p store.Placement) (store.Placed, error) {
	party, err := v.party(region)
	if err != nil {
		return store.Placed{}, err
	}
	return party.Place(ctx, v.Namespace, p)
}

func (v *move) party(region string) (Party, error) {
	if region == v.Here {
		return v.local, nil
	}
	if party := v.Peers[region]; party != nil {
		return party, nil
	}
	return nil, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("namespace %q has keys in region %q, which is not in this server's topology", v.Namespace, region))
}

// regions are all that there are, by name.
func (v *move) regions() []string {
	names := []string{v.Here}
	for name := range v.Peers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// others are all regions but the one that is moved to.
func (v *move) others() []string {
	return slices.DeleteFunc(v.regions(), func(region string) bool { return region == v.To })
}

// forget makes a region forget what it has.
func (v *move) forget(ctx context.Context, region string) error {
	party, err := v.party(region)
	for more := true; more && err == nil; {
		more, err = party.Forget(ctx, v.Namespace, v.current.Revision)
	}
	return err
}

// comparable refuses a move between stores that do not keep the same, or whose clocks are too
// far apart.
func (v *move) comparable(ctx context.Context) error {
	sources := v.sources()
	placed, err := v.placeAll(ctx, append(sources, v.To)) // the new home last: its clock has gone on
	if err != nil {
		return err
	}
	here := placed[v.To]
	if err := v.alike(placed); err != nil {
		return err
	}
	for _, source := range sources {
		there := placed[source]
		if behind := there.Now.Sub(here.Now); behind > maxBehind {
			return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
				"the clock of region %q is %v behind that of %q, and the namespace could not be used for as long; mend the clock", v.To, behind.Round(time.Second), source))
		}
	}
	return nil
}

// alike refuses to go on between stores that keep the namespace with other settings: keys would
// end by what they were not granted under.
func (v *move) alike(placed map[string]store.Placed) error {
	for _, source := range v.sources() {
		differ := differences(v.To, placed[v.To].Namespace, source, placed[source].Namespace)
		if differ == "" {
			continue
		}
		first := ""
		if v.now() != placement.AtRest {
			first = "abandon the move (--abandon), then "
		}
		if there := placed[source].Namespace; there.Tier != placed[v.To].Namespace.Tier {
			return store.Refuse(store.ErrInvalidArgument, first+"the "+otherTier(v.To, placed[v.To].Namespace, source, there))
		}
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"the settings of namespace %q are not the same in regions %q and %q: %s; %s%s", v.Namespace, source, v.To, differ, first, howToSettle))
	}
	return nil
}
