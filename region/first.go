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

// missingFor says what a namespace without a placement lacks for its first one; nothing if all
// regions have been heard and propose the same. Whoever finds nothing missing makes the same
// placement, so that it does not matter who does.
func (r *Region) missingFor(k *known) string {
	if k.proposed == "" {
		return "no rule of this region's topology file gives it one; add it to placements, or \"*\", in every region"
	}
	if elsewhere := onlyHome(k.proposed, r.config.Name); k.hasRecords && elsewhere != "" {
		return recordsIn(r.config.Name, elsewhere)
	}
	for _, name := range r.config.Topology.names() {
		if name == r.config.Name {
			continue
		}
		p := r.peers[name]
		theirs := p.said(k.ns.Name)
		switch {
		case !p.hasBeenHeard():
			return fmt.Sprintf("region %q has not been heard yet, and all must agree", name)
		case !theirs.exists:
			return fmt.Sprintf("region %q does not have this namespace; create it once more, which makes up for it", name)
		case theirs.ns.Placement != (store.Placement{}):
			return fmt.Sprintf("region %q knows a placement, which is being learned", name)
		case theirs.proposed != k.proposed:
			return fmt.Sprintf("the topology file of region %q says %q, and this region's %q; make them agree", name, theirs.proposed, k.proposed)
		case theirs.hasRecords && onlyHome(k.proposed, name) != "":
			return recordsIn(name, k.proposed)
		}
	}
	return ""
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
func (r *Region) settle(ctx context.Context) error {
	return r.hearing.do(ctx, &r.wg, func() error {
		ctx, cancel := context.WithTimeout(r.ctx, learnTime)
		defer cancel()
		if err := r.hearAll(ctx); err != nil {
			return err
		}
		placed := false
		for _, k := range r.atlas.Load().list {
			if !k.ready {
				continue
			}
			if err := r.placeFirst(ctx, k); err != nil {
				return err
			}
			placed = true
		}
		if !placed {
			return nil
		}
		return r.refresh(ctx)
	})
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
	rule, err := placement.ParseRule(k.proposed)
	if err != nil {
		return err
	}
	_, err = r.config.Store.PlaceNamespace(ctx, k.ns.Name, store.Placement{Epoch: 1, Revision: 1, Rule: rule.String()})
	if errors.Is(err, store.ErrWrongRegion) {
		return nil // another process was first
	}
	return err
}
