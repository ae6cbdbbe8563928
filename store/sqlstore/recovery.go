package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// ImportOutcome implements [store.Records].
func (s *Store) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	var answer store.ImportAnswer
	_, err := s.operate(ctx, req.Key, req.Validate(), func(ns *store.Namespace, old *store.Record, now time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideImport(old, ns, req, now)
		return change, err
	})
	if err != nil {
		return store.ImportAnswer{}, err
	}
	return answer, nil
}

// BeginRecovery implements [store.Recovery]. It is in force once no replica grants by an older
// copy of a namespace any more.
func (s *Store) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	if err := req.Validate(); err != nil {
		return store.BegunRecovery{}, err
	}
	if err := s.closed(); err != nil {
		return store.BegunRecovery{}, err
	}
	return s.keeper().beginRecovery(ctx, req)
}

// LiftRecovery implements [store.Recovery].
func (s *Store) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	if err := req.Validate(); err != nil {
		return store.Namespace{}, err
	}
	if err := s.closed(); err != nil {
		return store.Namespace{}, err
	}
	return s.keeper().changeNamespace(ctx, req.Target(), func(old *store.Namespace, now time.Time) (store.Namespace, error) {
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(req.Target())
		}
		return old.LiftRecovery(req, now)
	})
}

// beginRecovery changes all namespaces in one transaction.
func (k *keeper) beginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (begun store.BegunRecovery, err error) {
	err = k.dialect.runTx(ctx, k.pool, func(tx pgx.Tx) error {
		begun = store.BegunRecovery{}
		now, err := k.recoveryTime(ctx, tx)
		if err != nil {
			return err
		}
		begun.Now, begun.InForce = now, now.Add(copyLag)
		if err := req.Check(begun.Now); err != nil {
			return err
		}
		shared, err := sharedBy(ctx, tx)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT name, settings FROM idem_namespaces WHERE settings <> '' ORDER BY name FOR UPDATE")
		if err != nil {
			return err
		}
		stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedSettings])
		if err != nil {
			return err
		}
		for _, st := range stored {
			ns, err := decodeNamespace(st.Name, st.Settings)
			if err != nil {
				return unreadable(st.Name, err)
			}
			if !req.Concerns(ns.Name) {
				continue
			}
			next := ns.BeginRecovery(req, begun.Now)
			next.SharedBy = shared
			settings, err := encodeNamespace(next)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE idem_namespaces SET settings = $2 WHERE name = $1", st.Name, settings); err != nil {
				return err
			}
			begun.Namespaces = append(begun.Namespaces, next)
		}
		switch {
		case req.Namespace == "":
			return k.leave(ctx, tx)
		case len(begun.Namespaces) == 0:
			return store.NamespaceUnknown(req.Namespace)
		}
		return nil
	})
	if err != nil {
		return store.BegunRecovery{}, k.refused(ctx, err)
	}
	return begun, k.changed(ctx)
}

// recoveryTime reads the clock of a recovery. It locks the default namespace, as whoever creates one
// does: so the recovery sees all that were created without its floor.
func (k *keeper) recoveryTime(ctx context.Context, tx pgx.Tx) (time.Time, error) {
	before := k.opts.Wall()
	var now int64
	err := tx.QueryRow(ctx, "SELECT "+us(k.opts.Clock.Running)+" FROM idem_namespaces WHERE name = $1 FOR UPDATE", store.DefaultNamespace).Scan(&now)
	if err != nil {
		return time.Time{}, err
	}
	return timeOf(now), floorTooLow(timeOf(now), before)
}

// floorTooLow refuses a recovery by a clock of the database that is behind this machine's. The database
// that took over may be behind the one that was lost: then its present is no floor over what was
// forgotten, nor are its fences higher than those it gave.
func floorTooLow(database, wall time.Time) error {
	behind := wall.Sub(database)
	if behind <= store.MaxSkew {
		return nil
	}
	return &store.Error{Sentinel: store.ErrUnavailable, Detail: fmt.Sprintf(
		"the database's clock stands at %s, %v behind this machine's; a recovery would have too low a floor, and fences that were given before. "+
			"Set right whichever of the two is wrong, then begin again; nothing was done",
		database.Format(time.RFC3339), behind.Round(time.Second))}
}

// storedSettings is a row of idem_namespaces.
type storedSettings struct {
	Name     string
	Settings []byte
}

// lockFloor returns the default namespace, which says what floor a namespace begins with that is
// created. It stays as it is until this transaction ends: [keeper.beginRecovery] comes before,
// or sees what is created.
func lockFloor(ctx context.Context, tx pgx.Tx, name string) (*store.Namespace, error) {
	if name == store.DefaultNamespace {
		return nil, nil // exists
	}
	var settings []byte
	err := tx.QueryRow(ctx, "SELECT settings FROM idem_namespaces WHERE name = $1 FOR SHARE", store.DefaultNamespace).Scan(&settings)
	if err != nil {
		return nil, err
	}
	ns, err := decodeNamespace(store.DefaultNamespace, settings)
	if err != nil {
		return nil, unreadable(store.DefaultNamespace, err)
	}
	return &ns, nil
}
