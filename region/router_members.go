package region

import (
	"context"

	"github.com/idemd/idemd/store"
)

// Membership implements [store.Members], of this region's store.
func (r *Router) Membership(ctx context.Context) (store.Membership, error) {
	return r.local.Membership(ctx)
}

// SetMembership implements [store.Members], of this region's store.
func (r *Router) SetMembership(ctx context.Context, old, next store.Membership) error {
	return r.local.SetMembership(ctx, old, next)
}
