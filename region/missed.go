package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// A store that was restored, or that follows a copy that lags, knows its keys up to some instant; but
// of a namespace that a move has brought since, it knows none, and the old home has forgotten them.
// It finds that out when it hears where the namespace lives.

// learnPlacement stores a placement that was heard.
func (r *Region) learnPlacement(ctx context.Context, namespace string, p store.Placement) error {
	own, err := r.config.Store.GetNamespace(ctx, namespace)
	if err != nil {
		return err
	}
	if err := r.noteMissed(ctx, own, p); err != nil {
		return err
	}
	_, err = r.config.Store.PlaceNamespace(ctx, namespace, p)
	return err
}

// missedMove reports whether the placement makes the region a home of keys that no move has brought
// into its store. One that has joined takes part in every move to it: it was sealed just before the
// placement. One that has not takes part in none.
func (r *Region) missedMove(own store.Namespace, p store.Placement) bool {
	old := own.Placement
	if p.Epoch <= max(old.Epoch, 1) || !r.isHome(p.Rule) { // the first epoch brings no keys; see createHere
		return false
	}
	switch {
	case !r.member().Joined:
		return true
	case old.Epoch == 0: // just created: it is known by its floor if it may have been here before
		return !own.RecoveryFloor.IsZero()
	}
	return !p.Follows(old)
}

// isHome reports whether the rule gives keys to this region.
func (r *Region) isHome(rule string) bool {
	parsed, err := placement.ParseRule(rule)
	if err != nil {
		return false // nobody here can tell where a key lives
	}
	return slices.Contains(parsed.Regions(), r.config.Name)
}

// noteMissed has a store that is to store a placement note that it knows nothing of the keys, if it
// has missed the move that brought them. It comes before the placement is stored: after a crash in
// between the same is found again.
func (r *Region) noteMissed(ctx context.Context, own store.Namespace, p store.Placement) error {
	if !r.missedMove(own, p) {
		return nil
	}
	return r.knowsNothing(ctx, own, "%s after what this store knows (epoch %d)", movedHere(p), own.Placement.Epoch)
}

// movedHere begins the reason of a recovery of what a store has missed.
func movedHere(p store.Placement) string {
	return fmt.Sprintf("its keys were moved here (%s, epoch %d)", p.Rule, p.Epoch)
}

// missed reports whether the store has noted that it has missed the move that led to the placement. That
// its floor has been lifted since says nothing of what others still know.
func missed(own store.Namespace, p store.Placement) bool {
	return slices.ContainsFunc(own.Recovery, func(s store.RecoveryStep) bool {
		return s.Kind == store.RecoveryBegun && s.CompleteUntil.Equal(store.KnowsNothing) && strings.HasPrefix(s.Reason, movedHere(p))
	})
}

// createHere creates a namespace in this region's store; its placement is the one that other regions
// know. It gets one once all regions have the namespace: so a store that lacks one that lives in its region
// has lost it, and knows nothing of its keys, whatever floor has been lifted since. The floor stands from
// the first on.
func (r *Region) createHere(ctx context.Context, local store.Backend, ns store.Namespace) (store.Namespace, error) {
	_, err := r.config.Store.GetNamespace(ctx, ns.Name)
	isNew := errors.Is(err, store.ErrNamespaceUnknown)
	if err != nil && !isNew {
		return store.Namespace{}, err
	}
	lost := isNew && ns.Placement.Epoch > 0 && r.isHome(ns.Placement.Rule)
	if lost {
		page, err := r.config.Store.ListRecords(ctx, store.ListRequest{Namespace: store.DefaultNamespace, PageSize: 1})
		if err != nil {
			return store.Namespace{}, err
		}
		if page.Now.After(ns.RecoveryFloor) {
			ns.RecoveryFloor = page.Now
		}
	}
	created, err := local.CreateNamespace(ctx, ns)
	if err != nil {
		return store.Namespace{}, err
	}
	if isNew {
		r.noteRecords(ns.Name, false)
	}
	if !lost {
		return created, nil
	}
	if err := r.knowsNothing(ctx, ns, "it lived here (epoch %d), and the store had lost it", ns.Placement.Epoch); err != nil {
		return store.Namespace{}, err
	}
	return r.config.Store.GetNamespace(ctx, ns.Name)
}

// knowsNothing has the store note that it knows nothing of the keys of a namespace.
func (r *Region) knowsNothing(ctx context.Context, ns store.Namespace, reason string, args ...any) error {
	reason = fmt.Sprintf(reason, args...)
	_, err := r.config.Store.BeginRecovery(ctx, store.BeginRecoveryRequest{Namespace: ns.Name, CompleteUntil: store.KnowsNothing, Actor: "idemd", Reason: reason})
	if err == nil {
		r.logger.Warn("keys live here of which the store knows nothing: those that may have been used are refused until an operator settles them",
			"namespace", ns.Name, "reason", reason)
	}
	return err
}
