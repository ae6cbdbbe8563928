package sqlstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// placementLag is how long after a change of a placement has been committed a statement by an
// older copy may still run: it may begin until the copy is too old (11), and then lasts no
// longer than what the window covers. A COMMIT may take longer still; whoever copies records
// waits for those (see [sealer.ended]).
func (t Timing) placementLag() time.Duration {
	if seeded("placement-lag") {
		return copyLag
	}
	return copyLag + t.window()
}

// PlaceNamespace implements [store.Placements]. It is in force once no replica acts by an older
// copy any more.
func (s *Store) PlaceNamespace(ctx context.Context, namespace string, p store.Placement) (store.Placed, error) {
	if err := s.closed(); err != nil {
		return store.Placed{}, err
	}
	next, err := s.keeper().changeNamespace(ctx, namespace, func(old *store.Namespace, _ time.Time) (store.Namespace, error) {
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(namespace)
		}
		return old.Place(p)
	})
	if err != nil {
		return store.Placed{}, err
	}
	// The catalog has been read since the commit. A copy that lacks the change was read before,
	// and so by no later time, unless the clock stepped back in between: then what it has shown
	// counts.
	now, newest := s.catalog.copy.Load().now, s.clock.newestSeen()
	return store.Placed{Namespace: next, Now: timeOf(now), InForce: timeOf(newest).Add(s.opts.Timing.placementLag())}, nil
}

// TakeHistory implements [store.Placements].
func (s *Store) TakeHistory(ctx context.Context, revision int64, from store.Namespace) error {
	if err := s.closed(); err != nil {
		return err
	}
	_, err := s.keeper().changeNamespace(ctx, from.Name, func(old *store.Namespace, _ time.Time) (store.Namespace, error) {
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(from.Name)
		}
		next, err := old.TakeHistory(revision, from)
		return storable(next), err
	})
	return err
}

// moveTx runs fn in a transaction in which the namespace stays in one of the phases of the
// move at this revision: its placement is changed before or after. Sealed is what the seal said
// before the snapshot was taken, now the transaction's time.
//
// The lock on the namespace is a change of the transaction's own, so that its COMMIT waits, on
// PostgreSQL, until all that it has seen is on the standbys too.
func (s *Store) moveTx(namespace string, revision int64, phases []store.MovePhase, fn func(ctx context.Context, tx pgx.Tx, now, sealed int64) error) error {
	ctx, cancel := s.statementContext()
	defer cancel()
	sealed := s.seal.upTo()
	return s.dialect.runTx(ctx, s.pool, func(tx pgx.Tx) error {
		var (
			settings []byte
			now      int64
		)
		text := "SELECT settings, " + us(s.opts.Clock.Now) + " FROM idem_namespaces WHERE name = $1"
		if !seeded("move-locked") {
			text += " FOR SHARE"
		}
		if err := tx.QueryRow(ctx, text, namespace).Scan(&settings, &now); err != nil {
			return err
		}
		ns, err := decodeNamespace(namespace, settings)
		if err != nil {
			return unreadable(namespace, err)
		}
		if err := ns.CheckMove(revision, phases...); err != nil {
			return err
		}
		if err := s.clock.check(now); err != nil {
			return err
		}
		return fn(ctx, tx, now, sealed)
	})
}

// again carries out what may be done again until it is done.
func (s *Store) again(ctx context.Context, ns *store.Namespace, try func() error) error {
	t := task{key: store.Key{Namespace: ns.Name}, tier: ns.Tier}
	t.quick = func(context.Context) (found, bool, error) {
		err := try()
		return found{}, err == nil, err
	}
	return s.perform(ctx, t)
}
