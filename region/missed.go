package region

import (
	"context"
	"fmt"
	"slices"

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
// into its store. One that has joined takes part in every move to it, so it has been sealed before;
// one that has not takes part in none.
func (r *Region) missedMove(own store.Namespace, p store.Placement) bool {
	if p.Epoch <= max(own.Placement.Epoch, 1) || !r.isHome(p.Rule) { // the first epoch brings no keys
		return false
	}
	switch old := own.Placement; {
	case !r.member().Joined:
		return true
	case old.Epoch == 0: // just created: it is known by its floor if it may have been here before
		return !own.RecoveryFloor.IsZero()
	default: // the same rule comes back when a move is given up
		return old.Move.Phase == 0 && old.Rule != p.Rule
	}
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
	_, err := r.config.Store.BeginRecovery(ctx, store.BeginRecoveryRequest{
		Namespace: own.Name, CompleteUntil: store.KnowsNothing, Actor: "idemd",
		Reason: fmt.Sprintf("its keys were moved here (%s, epoch %d) after what this store knows (epoch %d)", p.Rule, p.Epoch, own.Placement.Epoch),
	})
	if err == nil {
		r.logger.Warn("keys were moved here of which the store knows nothing: those that may have been used are refused until an operator settles them",
			"namespace", own.Name, "epoch", p.Epoch, "known_epoch", own.Placement.Epoch)
	}
	return err
}
