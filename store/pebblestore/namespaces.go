package pebblestore

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// namespaceSet is the namespaces that exist, for those outside of the loop.
type namespaceSet struct {
	known atomic.Pointer[knownNamespaces]
}

// knownNamespaces are as of a commit that may not be synced yet: until it is, they serve
// to refuse, not to answer. They are not changed any more.
type knownNamespaces struct {
	namespaces map[string]*store.Namespace
	seq        uint64
}

func (s *namespaceSet) load() *knownNamespaces { return s.known.Load() }

func (s *namespaceSet) has(name string) bool { return s.load().namespaces[name] != nil }

func (s *namespaceSet) set(namespaces map[string]*store.Namespace, seq uint64) {
	s.known.Store(&knownNamespaces{namespaces: namespaces, seq: seq})
}

// storedNamespace is the JSON of a namespace on disk. Durations are in nanoseconds.
type storedNamespace struct {
	Name            string           `json:"name"`
	Tier            uint8            `json:"tier"`
	Retention       time.Duration    `json:"retention"`
	LapsePolicy     uint8            `json:"lapse_policy"`
	Lease           time.Duration    `json:"lease"`
	MaxLease        time.Duration    `json:"max_lease"`
	MaxAttempt      time.Duration    `json:"max_attempt"`
	MaxOutcomeBytes int              `json:"max_outcome_bytes"`
	Entity          uint8            `json:"entity"`
	RecoveryFloor   time.Time        `json:"recovery_floor,omitzero"`
	FloorForNew     time.Time        `json:"floor_for_new,omitzero"`
	Recovery        []storedStep     `json:"recovery,omitempty"`
	CreatedAt       time.Time        `json:"created_at"`
	UpdatedAt       time.Time        `json:"updated_at"`
	PastRetentions  []storedPastTime `json:"past_retentions,omitempty"`
	Placement       storedPlacement  `json:"placement,omitzero"`
}

type storedPlacement struct {
	Epoch    int64  `json:"epoch"`
	Revision int64  `json:"revision"`
	Rule     string `json:"rule"`
	MoveTo   string `json:"move_to,omitempty"`
	Phase    uint8  `json:"phase,omitempty"`
}

type storedPastTime struct {
	Retention time.Duration `json:"retention"`
	Until     time.Time     `json:"until"`
}

// putNamespace writes ns to the batch.
func putNamespace(b *pebble.Batch, ns *store.Namespace) error {
	stored := storedNamespace{
		Name: ns.Name, Tier: uint8(ns.Tier), Retention: ns.Retention, LapsePolicy: uint8(ns.LapsePolicy),
		Lease: ns.Lease, MaxLease: ns.MaxLease, MaxAttempt: ns.MaxAttempt,
		MaxOutcomeBytes: ns.MaxOutcomeBytes, Entity: uint8(ns.Entity), RecoveryFloor: ns.RecoveryFloor,
		FloorForNew: ns.FloorForNew, Recovery: storedSteps(ns.Recovery),
		CreatedAt: ns.CreatedAt, UpdatedAt: ns.UpdatedAt,
		Placement: storedPlacement{
			Epoch: ns.Placement.Epoch, Revision: ns.Placement.Revision, Rule: ns.Placement.Rule,
			MoveTo: ns.Placement.Move.To, Phase: uint8(ns.Placement.Move.Phase),
		},
	}
	for _, past := range ns.PastRetentions {
		stored.PastRetentions = append(stored.PastRetentions, storedPastTime(past))
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return fmt.Errorf("encode namespace %q: %w", ns.Name, err)
	}
	key := namespaceKey(ns.Name)
	value := append(make([]byte, sealLen), text...)
	seal(key, value)
	return b.Set(key, value, nil)
}

func decodeNamespace(key, value []byte) (*store.Namespace, error) {
	text, err := unseal(key, value)
	if err != nil {
		return nil, err
	}
	var stored storedNamespace
	if err := json.Unmarshal(text, &stored); err != nil {
		return nil, err
	}
	// Settings from before there was a least for outcomes get it.
	maxOutcomeBytes := max(stored.MaxOutcomeBytes, store.MinOutcomeBytes)
	ns := &store.Namespace{
		Name: stored.Name, Tier: store.Tier(stored.Tier), Retention: stored.Retention,
		LapsePolicy: store.LapsePolicy(stored.LapsePolicy), Lease: stored.Lease, MaxLease: stored.MaxLease,
		MaxAttempt: stored.MaxAttempt, MaxOutcomeBytes: maxOutcomeBytes,
		Entity: store.EntityRule(stored.Entity), RecoveryFloor: stored.RecoveryFloor,
		FloorForNew: stored.FloorForNew, Recovery: stepsOf(stored.Recovery),
		CreatedAt: stored.CreatedAt, UpdatedAt: stored.UpdatedAt,
		Placement: store.Placement{
			Epoch: stored.Placement.Epoch, Revision: stored.Placement.Revision, Rule: stored.Placement.Rule,
			Move: store.Move{To: stored.Placement.MoveTo, Phase: store.MovePhase(stored.Placement.Phase)},
		},
	}
	for _, past := range stored.PastRetentions {
		ns.PastRetentions = append(ns.PastRetentions, store.PastRetention(past))
	}
	return ns, nil
}

// loadNamespaces reads all namespaces.
func loadNamespaces(db *pebble.DB) (map[string]*store.Namespace, error) {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{prefixNamespace}, UpperBound: []byte{prefixNamespace + 1},
	})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	namespaces := map[string]*store.Namespace{}
	for ok := it.First(); ok; ok = it.Next() {
		ns, err := decodeNamespace(it.Key(), it.Value())
		if err != nil {
			return nil, fmt.Errorf("namespace %q: %w", it.Key()[1:], err)
		}
		namespaces[ns.Name] = ns
	}
	if namespaces[store.DefaultNamespace] == nil {
		return nil, fmt.Errorf("namespace %q is missing: %w", store.DefaultNamespace, it.Error())
	}
	return namespaces, it.Error()
}

// CreateNamespace implements [store.Namespaces].
func (s *Store) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	ns = ns.WithDefaults()
	if err := ns.Validate(); err != nil {
		return store.Namespace{}, err
	}
	return s.onNamespace(ctx, func(t *turn) (store.Namespace, error) {
		if old := t.l.namespaces[ns.Name]; old != nil {
			if !old.SameSettings(ns) {
				return store.Namespace{}, store.Refuse(store.ErrNamespaceExists, "update it instead, or choose another name")
			}
			return *old, nil
		}
		if err := ns.CheckFloor(t.now); err != nil {
			return store.Namespace{}, err
		}
		created := ns.Create(t.l.namespaces[store.DefaultNamespace], t.now)
		return created, t.setNamespace(&created)
	})
}

// UpdateNamespace implements [store.Namespaces].
func (s *Store) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return s.onNamespace(ctx, func(t *turn) (store.Namespace, error) {
		old := t.l.namespaces[ns.Name]
		if old == nil {
			return store.Namespace{}, store.NamespaceUnknown(ns.Name)
		}
		next, err := ns.Replace(*old, t.now)
		if err != nil {
			return store.Namespace{}, err
		}
		return next, t.setNamespace(&next)
	})
}

// GetNamespace implements [store.Namespaces].
func (s *Store) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	return s.onNamespace(ctx, func(t *turn) (store.Namespace, error) {
		if ns := t.l.namespaces[name]; ns != nil {
			return *ns, nil
		}
		return store.Namespace{}, store.NamespaceUnknown(name)
	})
}

// ListNamespaces implements [store.Namespaces].
func (s *Store) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	var list []store.Namespace
	err := s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		for _, ns := range t.l.namespaces {
			list = append(list, *ns)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b store.Namespace) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// onNamespace runs an operation on namespaces in the loop.
func (s *Store) onNamespace(ctx context.Context, run func(*turn) (store.Namespace, error)) (store.Namespace, error) {
	var ns store.Namespace
	err := s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) (err error) {
		ns, err = run(t)
		return err
	})
	if err != nil {
		return store.Namespace{}, err
	}
	return ns, nil
}

// setNamespace stores ns, which is not changed any more.
func (t *turn) setNamespace(ns *store.Namespace) error {
	if err := putNamespace(t.writes(), ns); err != nil {
		return err
	}
	t.l.namespaces = maps.Clone(t.l.namespaces)
	t.l.namespaces[ns.Name] = ns
	t.l.s.known.set(t.l.namespaces, t.l.newest.seq+1) // the commit in the making
	return nil
}
