package pebblestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

var metaMembership = []byte("mmembership")

// loadMembership reads what is known of the regions' stores. A store that was never served with
// a topology has nothing.
func loadMembership(db *pebble.DB, storeID string) (store.Membership, error) {
	m := store.Membership{StoreID: storeID}
	value, closer, err := db.Get(metaMembership)
	if errors.Is(err, pebble.ErrNotFound) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	defer closer.Close()
	text, err := unseal(metaMembership, value)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil && m.StoreID != storeID {
		err = fmt.Errorf("%w: it is that of another store", errDamagedValue)
	}
	if err != nil {
		return m, fmt.Errorf("what is known of other regions' stores: %w", err)
	}
	return m, nil
}

func putMembership(b *pebble.Batch, m store.Membership) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode what is known of other regions' stores: %w", err)
	}
	value := append(make([]byte, sealLen), text...)
	seal(metaMembership, value)
	return b.Set(metaMembership, value, nil)
}

// Membership implements [store.Members].
func (s *Store) Membership(ctx context.Context) (m store.Membership, err error) {
	err = s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		m = t.l.membership.Clone()
		return nil
	})
	if err != nil {
		return store.Membership{}, err
	}
	return m, nil
}

// SetMembership implements [store.Members].
func (s *Store) SetMembership(ctx context.Context, old, next store.Membership) error {
	return s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		m, err := t.l.membership.Replace(old, next)
		if err != nil {
			return err
		}
		return t.setMembership(m)
	})
}

func (t *turn) setMembership(m store.Membership) error {
	if err := putMembership(t.writes(), m); err != nil {
		return err
	}
	t.l.membership = m
	return nil
}

// leave has the store hear all other regions before it is a home again.
func (t *turn) leave() error {
	m := t.l.membership
	if !m.Joined {
		return nil
	}
	m.Joined = false
	return t.setMembership(m)
}
