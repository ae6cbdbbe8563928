package pebblestore

import (
	"context"
	"errors"

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

// ImportRecords implements [store.Placements].
func (s *Store) ImportRecords(context.Context, string, int64, []store.Inspection) error {
	return errors.ErrUnsupported
}

// ForgetRecords implements [store.Placements].
func (s *Store) ForgetRecords(context.Context, string, int64) (bool, error) {
	return false, errors.ErrUnsupported
}
