package storetest

import (
	"context"

	"github.com/idemd/idemd/store"
)

// Membership implements [store.Members].
func (m *Memory) Membership(context.Context) (store.Membership, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.membership.Clone(), nil
}

// SetMembership implements [store.Members].
func (m *Memory) SetMembership(_ context.Context, old, next store.Membership) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.membership, err = m.membership.Replace(old, next)
	return err
}
