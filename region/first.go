package region

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// settleInterval is how often callers of a namespace without a placement can have the regions
// asked for it.
const settleInterval = 100 * time.Millisecond

// missingFor says what a namespace lacks for its first placement; nothing if all regions have been
// heard and agree. Whoever finds nothing missing makes the same placement, so that it does not
// matter who does.
func (r *Region) missingFor(k *known) string {
	if k.proposed == "" {
		return "no rule of this region's topology file gives it one; add it to placements, or \"*\", in every region"
	}
	for p := range r.others() {
		if !p.hasBeenHeard() {
			return fmt.Sprintf("region %q has not been heard yet, and all must agree", p.name)
		}
		if missing := r.missingIn(p.name, k, p.said(k.ns.Name)); missing != "" {
			return missing
		}
	}
	if k.hasRecords && onlyHome(k.proposed, r.config.Name) != "" {
		return recordsIn(r.config.Name, k.proposed)
	}
	return ""
}

// missingIn says what is missing in another region.
func (r *Region) missingIn(name string, k *known, theirs heard) string {
	switch placed := theirs.ns.Placement; {
	case !theirs.exists:
		return fmt.Sprintf("region %q did not have this namespace when it was last heard; if it stays so, create it once more, which makes up for it", name)
	case placed != (store.Placement{}) && !r.mayAdopt(k.ns, placed):
		return fmt.Sprintf("region %q says that it lives by %q (epoch %d), and region %q has records of it of its own, from before it was one of these regions; "+
			"they would be forgotten: serve it with an empty store", name, placed.Rule, placed.Epoch, r.config.Name)
	case placed != (store.Placement{}):
		return fmt.Sprintf("region %q knows its placement, which is being learned", name)
	case theirs.proposed != k.proposed:
		return fmt.Sprintf("the topology file of region %q says %q, and this region's %q; make them agree", name, theirs.proposed, k.proposed)
	case theirs.hasRecords && onlyHome(k.proposed, name) != "":
		return recordsIn(name, k.proposed)
	}
	return ""
}

// mayAdopt reports whether a placement that was heard can take the place of the stored one.
// Records of a namespace that had none would be forgotten, unless all keys live here; a recovery
// floor says that they may be.
func (r *Region) mayAdopt(own store.Namespace, theirs store.Placement) bool {
	return own.Placement != (store.Placement{}) || !own.RecoveryFloor.IsZero() ||
		onlyHome(theirs.Rule, r.config.Name) == "" || !r.foundRecords(own.Name)
}

// onlyHome returns nothing if the region is the only home that the rule gives, else the rule.
func onlyHome(rule, region string) string {
	if rule == placement.Fixed(region) {
		return ""
	}
	return rule
}

func recordsIn(region, rule string) string {
	return fmt.Sprintf("region %q has records of it, and by %q keys would live elsewhere; write fixed %s in all topology files, and move it afterwards",
		region, rule, region)
}

// settleSoon is settle, but not too often.
func (r *Region) settleSoon(ctx context.Context) error {
	now := time.Now().UnixNano()
	last := r.lastHeard.Load()
	if now-last < int64(settleInterval) || !r.lastHeard.CompareAndSwap(last, now) {
		return nil
	}
	err := r.settle(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil // what is missing, the atlas says
}

// settle asks all regions what they know now, and gives a first placement to what they agree on.
// Of those that are asked each asks back first, so that what was placed here is stored there.
func (r *Region) settle(ctx context.Context) error {
	return r.hearing.do(ctx, &r.wg, func() error {
		ctx, cancel := context.WithTimeout(r.ctx, learnTime)
		defer cancel()
		if err := r.hearAll(ctx); err != nil {
			return err
		}
		return r.placeReady(ctx)
	})
}

// placeReady gives its first placement to each namespace that lacks nothing for it.
func (r *Region) placeReady(ctx context.Context) error {
	placed := false
	for _, k := range r.atlas.Load().list {
		if k.ready {
			placed = true
			if err := r.placeFirst(ctx, k); err != nil {
				return err
			}
		}
	}
	if !placed {
		return nil
	}
	return r.refresh(ctx)
}

// hearAll asks the other regions at once. All must answer: what one has said earlier may not be
// what it would say now.
func (r *Region) hearAll(ctx context.Context) error {
	var (
		asked sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	for _, p := range r.peers {
		asked.Go(func() {
			if err := p.learn(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("region %q: %w", p.name, err))
			}
		})
	}
	asked.Wait()
	if len(r.peers) == 0 {
		return r.refresh(ctx)
	}
	return errors.Join(errs...)
}

func (r *Region) placeFirst(ctx context.Context, k *known) error {
	_, err := r.config.Store.PlaceNamespace(ctx, k.ns.Name, store.Placement{Epoch: 1, Revision: 1, Rule: k.proposed})
	if errors.Is(err, store.ErrWrongRegion) {
		return nil // another process was first
	}
	return err
}
