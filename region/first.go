package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// settleInterval is how often callers of a namespace without a placement can have the regions
// asked for it.
const settleInterval = 100 * time.Millisecond

// agreed is the revision from which on a placement is in force. A first placement has one before
// it, by which nobody serves: it says that a region has stored what all propose. The next one is
// made once all regions have. So a region in whose store there is nothing of a namespace, and
// which hears that it is a home by a placement in force, has lost its store, and knows it.
const agreed = 2

// missingFor says what a namespace lacks for its next placement on the way to one in force;
// nothing if all regions have been heard and agree. Whoever finds nothing missing makes the same
// placement, so that it does not matter who does.
func (r *Region) missingFor(k *known) string {
	if !k.placed() && k.proposed == "" {
		return "no rule of this region's topology file gives it one; add it to placements, or \"*\", in every region"
	}
	for _, name := range r.config.Topology.names() {
		p := r.peers[name]
		if p == nil {
			continue
		}
		if !p.hasBeenHeard() {
			return fmt.Sprintf("region %q has not been heard yet, and all must agree", name)
		}
		if missing := r.missingIn(name, k, p.said(k.ns.Name)); missing != "" {
			return missing
		}
	}
	if !k.placed() && k.hasRecords && onlyHome(k.proposed, r.config.Name) != "" {
		return recordsIn(r.config.Name, k.proposed)
	}
	return ""
}

// missingIn says what is missing in another region.
func (r *Region) missingIn(name string, k *known, theirs heard) string {
	switch placed := theirs.ns.Placement; {
	case !theirs.exists:
		return fmt.Sprintf("region %q does not have this namespace; create it once more, which makes up for it", name)
	case k.placed() && placed == (store.Placement{}):
		return fmt.Sprintf("region %q has not stored its placement yet", name)
	case !k.placed() && placed != (store.Placement{}) && !r.mayAdopt(k.ns, placed):
		return fmt.Sprintf("region %q says that it lives by %q (epoch %d), and the store of this region, %[4]q, does not know of it: it was lost, or is not that region's. "+
			"Restore a backup of it; or accept the loss: begin a recovery at a server of region %[4]q, and claims of what may have been forgotten are refused",
			name, placed.Rule, placed.Epoch, r.config.Name)
	case !k.placed() && placed != (store.Placement{}), k.placed() && placed.Revision > k.ns.Placement.Revision:
		return fmt.Sprintf("region %q knows a newer placement, which is being learned", name)
	case !k.placed() && theirs.proposed != k.proposed:
		return fmt.Sprintf("the topology file of region %q says %q, and this region's %q; make them agree", name, theirs.proposed, k.proposed)
	case !k.placed() && theirs.hasRecords && onlyHome(k.proposed, name) != "":
		return recordsIn(name, k.proposed)
	}
	return ""
}

// mayAdopt reports whether a placement that was heard can take the place of the stored one. A
// store that has lost what it knew must not serve keys as if it had never seen them; with a
// recovery floor it does not.
func (r *Region) mayAdopt(own store.Namespace, theirs store.Placement) bool {
	if own.Placement != (store.Placement{}) || theirs.Revision < agreed || !own.RecoveryFloor.IsZero() {
		return true
	}
	rule, err := placement.ParseRule(theirs.Rule)
	if err != nil || r.foundRecords(own.Name) {
		return false
	}
	return theirs.Move.To != r.config.Name && !slices.Contains(rule.Regions(), r.config.Name)
}

// onlyHome returns nothing if the region is the only home that the rule gives, else the rule.
func onlyHome(rule, region string) string {
	if rule == wordFixed+region {
		return ""
	}
	return rule
}

const wordFixed = "fixed "

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
		for range agreed {
			if err := r.hearAll(ctx); err != nil {
				return err
			}
			if placed, err := r.placeReady(ctx); !placed || err != nil {
				return err
			}
		}
		return nil
	})
}

// placeReady gives its next placement to each namespace that lacks nothing for it.
func (r *Region) placeReady(ctx context.Context) (placed bool, err error) {
	for _, k := range r.atlas.Load().list {
		if k.ready {
			placed = true
			if err := r.placeNext(ctx, k); err != nil {
				return placed, err
			}
		}
	}
	if !placed {
		return false, nil
	}
	return true, r.refresh(ctx)
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

func (r *Region) placeNext(ctx context.Context, k *known) error {
	next := k.ns.Placement
	next.Revision++
	if !k.placed() {
		next.Epoch, next.Rule = 1, k.proposed
	}
	_, err := r.config.Store.PlaceNamespace(ctx, k.ns.Name, next)
	if errors.Is(err, store.ErrWrongRegion) {
		return nil // another process was first
	}
	return err
}
