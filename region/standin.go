package region

import (
	"context"
	"sync/atomic"

	"github.com/idemd/idemd/store"
)

// standIn is the store of another region that this process has open too. That is safe where the
// store is safe under any number of processes.
type standIn struct {
	store.Backend
	waiter     *store.Waiter
	membership atomic.Pointer[store.Membership] // as it was read last
}

func newStandIn(b store.Backend) *standIn {
	return &standIn{Backend: b, waiter: store.NewWaiter(b, store.WaiterOptions{})}
}

// Claim implements [store.Store].
func (s *standIn) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return s.waiter.Claim(ctx, req)
}

// Complete implements [store.Store].
func (s *standIn) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	return s.waiter.Complete(ctx, req)
}

// Release implements [store.Store].
func (s *standIn) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	return s.waiter.Release(ctx, req)
}

// read notes what the store knows of itself.
func (s *standIn) read(ctx context.Context) {
	if m, err := s.Membership(ctx); err == nil {
		s.membership.Store(&m)
	}
}

// standsFor reports whether it is the store that is known as the region's, by the acceptance that
// is known, and a home.
func (s *standIn) standsFor(known store.PeerStore) bool {
	if s == nil {
		return false
	}
	m := s.membership.Load()
	return m != nil && m.Joined && m.StoreID == known.StoreID && m.Accepted.Number >= known.Number
}
