package pebblestore

import (
	"context"

	"github.com/idemd/idemd/store"
)

// PlaceNamespace implements [store.Placements].
func (s *Store) PlaceNamespace(ctx context.Context, namespace string, p store.Placement) (store.Placed, error) {
	var placed store.Placed
	err := s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		old := t.l.namespaces[namespace]
		if old == nil {
			return store.NamespaceUnknown(namespace)
		}
		next, err := old.Place(p)
		if err != nil {
			return err
		}
		placed = store.Placed{Namespace: next, Now: t.now, InForce: t.now}
		if p == old.Placement {
			return nil
		}
		return t.setNamespace(&next)
	})
	if err != nil {
		return store.Placed{}, err
	}
	return placed, nil
}

// TakeHistory implements [store.Placements].
func (s *Store) TakeHistory(ctx context.Context, revision int64, from store.Namespace) error {
	return s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		ns := t.l.namespaces[from.Name]
		if ns == nil {
			return store.NamespaceUnknown(from.Name)
		}
		next, err := ns.TakeHistory(revision, from)
		if err != nil {
			return err
		}
		return t.setNamespace(&next)
	})
}

// moving returns the namespace if it is in one of the phases of a move at the revision.
func (t *turn) moving(namespace string, revision int64, phases ...store.MovePhase) (*store.Namespace, error) {
	ns := t.l.namespaces[namespace]
	if ns == nil {
		return nil, store.NamespaceUnknown(namespace)
	}
	if err := ns.CheckMove(revision, phases...); err != nil {
		return nil, err
	}
	return ns, nil
}
