package storetest

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/pagetoken"
)

// Memory is a [store.Backend] in a map: the transition functions and nothing else. It
// keeps nothing across a restart, so it is a fake for tests of what stands on a store.
type Memory struct {
	clock *store.SteadyClock
	pages pagetoken.Sealer

	mu         sync.Mutex
	namespaces map[string]store.Namespace
	rows       map[store.KeyDigest]*memoryRow
	membership store.Membership
}

type memoryRow struct {
	record *store.Record
	events []store.Event
}

var _ store.Backend = (*Memory)(nil)

// NewMemory returns an empty store with the default namespace.
func NewMemory(source store.ClockSource) *Memory {
	m := &Memory{
		clock:      store.NewSteadyClock(source, time.Time{}),
		pages:      pagetoken.Random(),
		namespaces: map[string]store.Namespace{},
		rows:       map[store.KeyDigest]*memoryRow{},
		membership: store.Membership{StoreID: store.NewStoreID()},
	}
	now := m.clock.Now()
	ns := store.Namespace{Name: store.DefaultNamespace, CreatedAt: now, UpdatedAt: now}
	m.namespaces[ns.Name] = ns.WithDefaults()
	return m
}

// MemoryFactory makes [Memory] instances.
func MemoryFactory(testing.TB) *Instance {
	clock := NewClock()
	return &Instance{Backend: NewMemory(clock), Clock: clock}
}

// decide runs one operation under the lock. Apply gets what is stored and returns the
// change to it.
func (m *Memory) decide(ctx context.Context, key store.Key, valid error,
	apply func(old *store.Record, ns *store.Namespace, now time.Time) (store.Change, error)) error {
	if valid != nil {
		return valid
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ns, ok := m.namespaces[key.Namespace]
	if !ok {
		return store.NamespaceUnknown(key.Namespace)
	}
	digest := key.Digest()
	row := m.rows[digest]
	if row == nil {
		row = &memoryRow{}
	}
	now := m.clock.Now()
	change, err := apply(row.record, &ns, now)
	if change.Record != nil {
		if row.record != nil && row.record.Expired(now) {
			row.events = nil // a store that had dropped the expired record would have none
		}
		row.record = change.Record
		m.rows[digest] = row
	}
	if change.Event != nil {
		row.events = store.AddEvent(row.events, *change.Event)
	}
	return err
}

// Claim implements [store.Store].
func (m *Memory) Claim(ctx context.Context, req store.ClaimRequest) (answer store.ClaimAnswer, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideClaim(old, ns, req, now, m.clock.Wall())
		return change, err
	})
	return answer, err
}

// Renew implements [store.Store].
func (m *Memory) Renew(ctx context.Context, req store.RenewRequest) (answer store.RenewAnswer, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideRenew(old, ns, req, now)
		return change, err
	})
	return answer, err
}

// Complete implements [store.Store].
func (m *Memory) Complete(ctx context.Context, req store.CompleteRequest) (answer store.CompleteAnswer, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideComplete(old, ns, req, now)
		return change, err
	})
	return answer, err
}

// Release implements [store.Store].
func (m *Memory) Release(ctx context.Context, req store.ReleaseRequest) (answer store.ReleaseAnswer, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		answer, change, err = store.DecideRelease(old, ns, req, now)
		return change, err
	})
	return answer, err
}

// Lookup implements [store.Store].
func (m *Memory) Lookup(ctx context.Context, req store.LookupRequest) (answer store.LookupAnswer, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		answer, err = store.DecideLookup(old, ns, req, now)
		return change, err
	})
	return answer, err
}

// Resolve implements [store.Records].
func (m *Memory) Resolve(ctx context.Context, req store.ResolveRequest) (rec *store.Record, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		change, err = store.DecideResolve(old, ns, req, now)
		rec = change.Record
		return change, err
	})
	return rec, err
}

// ForceRelease implements [store.Records].
func (m *Memory) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (rec *store.Record, err error) {
	err = m.decide(ctx, req.Key, req.Validate(), func(old *store.Record, ns *store.Namespace, now time.Time) (change store.Change, err error) {
		change, err = store.DecideForceRelease(old, ns, req, now)
		rec = change.Record
		return change, err
	})
	return rec, err
}

// InspectRecord implements [store.Records].
func (m *Memory) InspectRecord(ctx context.Context, key store.Key) (inspection store.Inspection, err error) {
	err = m.decide(ctx, key, key.Validate(), func(old *store.Record, _ *store.Namespace, now time.Time) (change store.Change, err error) {
		if old == nil || old.Expired(now) {
			return change, store.KeyNotFound()
		}
		events := slices.Clone(m.rows[key.Digest()].events)
		inspection = store.Inspection{Record: old, Events: events, Now: now}
		return change, nil
	})
	return inspection, err
}

// ListRecords implements [store.Records]. The page token is the last record's digest, sealed.
func (m *Memory) ListRecords(_ context.Context, req store.ListRequest) (store.RecordPage, error) {
	if err := req.Validate(); err != nil {
		return store.RecordPage{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.namespaces[req.Namespace]; !ok {
		return store.RecordPage{}, store.NamespaceUnknown(req.Namespace)
	}
	now := m.clock.Now()
	page := store.RecordPage{Now: now}
	var after []byte
	if req.PageToken != "" {
		var err error
		if after, err = m.pages.Open(req); err != nil {
			return store.RecordPage{}, err
		}
	}
	for digest, row := range m.rows {
		if bytes.Compare(digest[:], after) > 0 && row.record.Key.Namespace == req.Namespace && req.Filter.Matches(row.record, now) {
			rec := *row.record
			rec.Outcome = nil
			page.Records = append(page.Records, &rec)
		}
	}
	slices.SortFunc(page.Records, func(a, b *store.Record) int {
		x, y := a.Key.Digest(), b.Key.Digest()
		return strings.Compare(string(x[:]), string(y[:]))
	})
	size := cmp.Or(req.PageSize, store.DefaultPageSize)
	if len(page.Records) > size {
		page.Records = page.Records[:size]
		last := page.Records[size-1].Key.Digest()
		page.NextPageToken = m.pages.Seal(req, last[:])
	}
	return page, nil
}

// CreateNamespace implements [store.Namespaces].
func (m *Memory) CreateNamespace(_ context.Context, ns store.Namespace) (store.Namespace, error) {
	ns = ns.WithDefaults()
	if err := ns.Validate(); err != nil {
		return store.Namespace{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.namespaces[ns.Name]; ok {
		if !old.SameSettings(ns) {
			return store.Namespace{}, store.Refuse(store.ErrNamespaceExists, "update it instead, or choose another name")
		}
		return old, nil
	}
	if err := ns.CheckFloor(m.clock.Now()); err != nil {
		return store.Namespace{}, err
	}
	def := m.namespaces[store.DefaultNamespace]
	ns = ns.Create(&def, m.clock.Now())
	m.namespaces[ns.Name] = ns
	return ns, nil
}

// UpdateNamespace implements [store.Namespaces].
func (m *Memory) UpdateNamespace(_ context.Context, ns store.Namespace) (store.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.namespaces[ns.Name]
	if !ok {
		return store.Namespace{}, store.NamespaceUnknown(ns.Name)
	}
	next, err := ns.Replace(old, m.clock.Now())
	if err != nil {
		return store.Namespace{}, err
	}
	m.namespaces[ns.Name] = next
	return next, nil
}

// GetNamespace implements [store.Namespaces].
func (m *Memory) GetNamespace(_ context.Context, name string) (store.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns, ok := m.namespaces[name]
	if !ok {
		return store.Namespace{}, store.NamespaceUnknown(name)
	}
	return ns, nil
}

// ListNamespaces implements [store.Namespaces].
func (m *Memory) ListNamespaces(context.Context) ([]store.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []store.Namespace
	for _, ns := range m.namespaces {
		list = append(list, ns)
	}
	slices.SortFunc(list, func(a, b store.Namespace) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// PlaceNamespace implements [store.Placements].
func (m *Memory) PlaceNamespace(_ context.Context, namespace string, p store.Placement) (store.Placed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.namespaces[namespace]
	if !ok {
		return store.Placed{}, store.NamespaceUnknown(namespace)
	}
	next, err := old.Place(p)
	if err != nil {
		return store.Placed{}, err
	}
	m.namespaces[namespace] = next
	now := m.clock.Now()
	return store.Placed{Namespace: next, Now: now, InForce: now}, nil
}

// ImportRecords implements [store.Placements].
func (m *Memory) ImportRecords(_ context.Context, namespace string, revision int64, records []store.Inspection) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns, ok := m.namespaces[namespace]
	if !ok {
		return store.NamespaceUnknown(namespace)
	}
	if err := ns.CheckMove(revision, store.MoveSealed); err != nil {
		return err
	}
	if err := ns.CheckImport(records...); err != nil {
		return err
	}
	for _, in := range records {
		digest := in.Record.Key.Digest()
		if old := m.rows[digest]; old == nil || old.record.Fence <= in.Record.Fence {
			m.rows[digest] = &memoryRow{record: in.Record, events: slices.Clone(in.Events)}
		}
	}
	return nil
}

// TakeHistory implements [store.Placements].
func (m *Memory) TakeHistory(_ context.Context, revision int64, from store.Namespace) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.namespaces[from.Name]
	if !ok {
		return store.NamespaceUnknown(from.Name)
	}
	next, err := old.TakeHistory(revision, from)
	if err == nil {
		m.namespaces[from.Name] = next
	}
	return err
}

// ForgetRecords implements [store.Placements].
func (m *Memory) ForgetRecords(_ context.Context, namespace string, revision int64, keep func(store.Key) bool) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns, ok := m.namespaces[namespace]
	if !ok {
		return false, store.NamespaceUnknown(namespace)
	}
	if err := ns.CheckMove(revision, store.MoveSealed, store.MoveFlipped); err != nil {
		return false, err
	}
	maps.DeleteFunc(m.rows, func(_ store.KeyDigest, r *memoryRow) bool {
		return r.record.Key.Namespace == namespace && (keep == nil || !keep(r.record.Key))
	})
	return false, nil
}

// Buckets implements [store.Maintainer]: a map has none.
func (m *Memory) Buckets(context.Context) ([]store.Bucket, error) { return nil, nil }

// Maintain implements [store.Maintainer]: it forgets nothing, so fences never restart.
func (m *Memory) Maintain(context.Context) (store.Maintenance, error) {
	return store.Maintenance{}, nil
}
