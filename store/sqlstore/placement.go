package sqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/idemd/idemd/store"
)

// PlaceNamespace implements [store.Placements]. It is in force once no replica acts by an older
// copy any more.
func (s *Store) PlaceNamespace(ctx context.Context, namespace string, p store.Placement) (store.Placed, error) {
	if err := s.closed(); err != nil {
		return store.Placed{}, err
	}
	var at time.Time
	next, err := s.keeper().changeNamespace(ctx, namespace, func(old *store.Namespace, now time.Time) (store.Namespace, error) {
		at = now
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(namespace)
		}
		return old.Place(p)
	})
	if err != nil {
		return store.Placed{}, err
	}
	return store.Placed{Namespace: next, Now: at, InForce: at.Add(copyLag)}, nil
}

// ImportRecords implements [store.Placements].
func (s *Store) ImportRecords(context.Context, string, int64, []store.Inspection) error {
	return errors.ErrUnsupported
}

// ForgetRecords implements [store.Placements].
func (s *Store) ForgetRecords(context.Context, string, int64) (bool, error) {
	return false, errors.ErrUnsupported
}
