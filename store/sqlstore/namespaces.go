package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

func encodeNamespace(ns store.Namespace) ([]byte, error) {
	ns.SharedBy = nil // is not kept, but read of the regions
	b, err := proto.Marshal(storepb.NamespaceToProto(ns))
	if err != nil {
		return nil, fmt.Errorf("encode namespace %q: %w", ns.Name, err)
	}
	return b, nil
}

func decodeNamespace(name string, settings []byte) (store.Namespace, error) {
	var m pb.Namespace
	if err := proto.Unmarshal(settings, &m); err != nil {
		return store.Namespace{}, fmt.Errorf("namespace %q: %w", name, err)
	}
	ns, err := storepb.NamespaceFromProto(&m)
	switch {
	case err != nil:
		return store.Namespace{}, fmt.Errorf("namespace %q: %w", name, err)
	case ns.Name != name:
		return store.Namespace{}, fmt.Errorf("namespace %q: the settings are those of %q", name, ns.Name)
	}
	return ns, nil
}

// unreadable is the refusal for a namespace whose settings are damaged.
func unreadable(name string, cause error) error {
	return &store.Error{
		Sentinel: store.ErrRecordCorrupt, Cause: cause,
		Detail: fmt.Sprintf("the settings of namespace %q are damaged; nothing was changed or granted; an operator must repair them", name),
	}
}

// namespace returns the namespace of a key.
func (s *Store) namespace(ctx context.Context, name string) (*store.Namespace, error) {
	if err := s.closed(); err != nil {
		return nil, err
	}
	return s.catalog.namespace(ctx, name)
}

// inNamespace calls f with a copy of a namespace and the instant from which on, by the
// database's clock, nothing is done by it any more: then f returns errOldCopy, and is called
// with a newer one.
func (s *Store) inNamespace(ctx context.Context, name string, f func(ns *store.Namespace, until int64) error) error {
	var last error
	for range tries {
		snap, err := s.catalog.current(ctx)
		if err != nil {
			return err
		}
		ns, err := s.namespace(ctx, name) // of this copy, or a newer one
		if err != nil {
			return err
		}
		if last = f(ns, snap.until()); !errors.Is(last, errOldCopy) {
			return last
		}
	}
	return unavailable(last)
}

// CreateNamespace implements [store.Namespaces]. It also makes the buckets of its tier.
func (s *Store) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	if err := s.closed(); err != nil {
		return store.Namespace{}, err
	}
	return s.keeper().createNamespace(ctx, ns)
}

// UpdateNamespace implements [store.Namespaces]. The other replicas on the database learn of
// it within maxCatalogAge.
func (s *Store) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	if err := s.closed(); err != nil {
		return store.Namespace{}, err
	}
	return s.keeper().updateNamespace(ctx, ns)
}

// GetNamespace implements [store.Namespaces]. It asks the database.
func (s *Store) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	snap, err := s.reread(ctx)
	if err != nil {
		return store.Namespace{}, err
	}
	ns, err := snap.known(name)
	if err != nil {
		return store.Namespace{}, err
	}
	return copyNamespace(ns), nil
}

// ListNamespaces implements [store.Namespaces]. It asks the database. A damaged one is left out;
// it is logged and counted.
func (s *Store) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	snap, err := s.reread(ctx)
	if err != nil {
		return nil, err
	}
	var list []store.Namespace
	for _, name := range sortedKeys(snap.namespaces) {
		list = append(list, copyNamespace(snap.namespaces[name]))
	}
	return list, nil
}

func sortedKeys(m map[string]*store.Namespace) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// copyNamespace is one that its caller may change.
func copyNamespace(ns *store.Namespace) store.Namespace {
	c := *ns
	c.PastRetentions = slices.Clone(ns.PastRetentions)
	return c
}

// reread returns a copy of the catalog that is newer than the call.
func (s *Store) reread(ctx context.Context) (*snapshot, error) {
	if err := s.closed(); err != nil {
		return nil, err
	}
	if err := s.catalog.refresh(ctx); err != nil {
		return nil, err
	}
	return s.catalog.copy.Load(), nil
}

// storable cuts what the encoding does not keep, so that what is answered is what is stored.
// No record has a time between two microseconds.
func storable(ns store.Namespace) store.Namespace {
	ns.RecoveryFloor = ns.RecoveryFloor.UTC().Truncate(time.Microsecond)
	return ns
}

func (k *keeper) createNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	ns = storable(ns.WithDefaults())
	if err := ns.Validate(); err != nil {
		return store.Namespace{}, err
	}
	// The buckets first: a copy of the catalog that has the namespace has its buckets.
	if err := k.catalog.refresh(ctx); err != nil {
		return store.Namespace{}, err
	}
	if err := k.provide(ctx, k.catalog.copy.Load(), ns.Tier); err != nil {
		return store.Namespace{}, k.refused(ctx, err)
	}
	return k.changeNamespace(ctx, ns.Name, func(old *store.Namespace, now time.Time) (store.Namespace, error) {
		if old != nil {
			if !old.SameSettings(ns) {
				return store.Namespace{}, store.Refuse(store.ErrNamespaceExists, "update it instead, or choose another name")
			}
			return *old, nil
		}
		return ns, ns.CheckFloor(now)
	})
}

func (k *keeper) updateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return k.changeNamespace(ctx, ns.Name, func(old *store.Namespace, now time.Time) (store.Namespace, error) {
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(ns.Name)
		}
		next, err := storable(ns).Replace(*old, now)
		if err != nil {
			return store.Namespace{}, err
		}
		if next.Retention > old.Retention {
			// Replicas that have not heard of it still grant under the old retention.
			next = next.WithPast(store.PastRetention{Retention: old.Retention, Until: now.Add(copyLag)})
		}
		return next, nil
	})
}

// changeNamespace locks a namespace, lets change decide what it is to be, and stores that. Old
// is nil if it does not exist.
func (k *keeper) changeNamespace(ctx context.Context, name string, change func(old *store.Namespace, now time.Time) (store.Namespace, error)) (next store.Namespace, err error) {
	err = k.dialect.runTx(ctx, k.pool, func(tx pgx.Tx) error {
		def, err := lockFloor(ctx, tx, name)
		if err != nil {
			return err
		}
		// There is no row to lock before there is a namespace: creators meet at an empty one.
		_, err = tx.Exec(ctx, "INSERT INTO idem_namespaces (name, settings) VALUES ($1, '') ON CONFLICT (name) DO NOTHING", name)
		if err != nil {
			return err
		}
		var (
			settings []byte
			now      int64
			old      *store.Namespace
		)
		err = tx.QueryRow(ctx, "SELECT settings, "+us(k.opts.Clock.Running)+" FROM idem_namespaces WHERE name = $1 FOR UPDATE", name).Scan(&settings, &now)
		if err != nil {
			return err
		}
		shared, err := sharedBy(ctx, tx)
		if err != nil {
			return err
		}
		if len(settings) > 0 {
			stored, err := decodeNamespace(name, settings)
			if err != nil {
				return unreadable(name, err)
			}
			stored.SharedBy, old = shared, &stored
		}
		if next, err = change(old, timeOf(now)); err != nil {
			return err
		}
		if old == nil {
			next = next.Create(def, timeOf(now))
			next.SharedBy = shared
		}
		if settings, err = encodeNamespace(next); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE idem_namespaces SET settings = $2 WHERE name = $1", name, settings)
		return err
	})
	if err != nil {
		return store.Namespace{}, k.refused(ctx, err)
	}
	return next, k.changed(ctx)
}

// changed reads the catalog after a change.
func (k *keeper) changed(ctx context.Context) error {
	err := k.catalog.refresh(ctx)
	if errors.Is(err, store.ErrUnavailable) {
		return mayBeDone(causeOf(err), lookFirst)
	}
	return err
}

// refused is the answer for an error of a transaction.
func (k *keeper) refused(ctx context.Context, err error) error {
	switch {
	case isRefusal(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case faultOf(err) == faultUnknown:
		return mayBeDone(err, lookFirst)
	}
	return unavailable(err)
}

func isRefusal(err error) bool {
	var refusal *store.Error
	return errors.As(err, &refusal)
}
