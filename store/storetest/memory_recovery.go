package storetest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// ImportOutcome implements [store.Records].
func (m *Memory) ImportOutcome(ctx context.Context, req store.ImportRequest) (answer store.ImportAnswer, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideImport(old, ns, req, now)
		return change, err
	})
	return answer, err
}

// BeginRecovery implements [store.Recovery].
func (m *Memory) BeginRecovery(_ context.Context, req store.BeginRecoveryRequest) (begun store.BegunRecovery, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	if err := req.Validate(); err != nil {
		return begun, err
	}
	if err := req.Check(now); err != nil {
		return begun, err
	}
	begun.Now, begun.InForce = now, now
	if req.Namespace == "" {
		m.membership.Joined = false
	} else if _, ok := m.namespaces[req.Namespace]; !ok {
		return store.BegunRecovery{}, store.NamespaceUnknown(req.Namespace)
	}
	for _, name := range slices.Sorted(maps.Keys(m.namespaces)) {
		if !req.Concerns(name) {
			continue
		}
		m.namespaces[name] = m.namespaces[name].BeginRecovery(req, now)
		begun.Namespaces = append(begun.Namespaces, m.namespaces[name])
	}
	return begun, nil
}

// LiftRecovery implements [store.Recovery].
func (m *Memory) LiftRecovery(_ context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	if err := req.Validate(); err != nil {
		return store.Namespace{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ns, ok := m.namespaces[req.Target()]
	if !ok {
		return store.Namespace{}, store.NamespaceUnknown(req.Target())
	}
	next, err := ns.LiftRecovery(req, m.clock.Now())
	if err != nil {
		return store.Namespace{}, err
	}
	m.namespaces[ns.Name] = next
	return next, nil
}
