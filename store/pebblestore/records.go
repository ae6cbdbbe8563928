package pebblestore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// Resolve implements [store.Records].
func (s *Store) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	var rec *store.Record
	err := s.onKey(ctx, classSettle, &req.Key, outcomeBytes(req.Outcome), req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (store.Change, error) {
			change, err := store.DecideResolve(old, ns, req, now)
			rec = change.Record
			return change, err
		})
	if err != nil {
		return nil, err
	}
	return rec, nil
}

// ForceRelease implements [store.Records].
func (s *Store) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	var rec *store.Record
	err := s.onKey(ctx, classSettle, &req.Key, 0, req.Validate(),
		func(old *store.Record, ns *store.Namespace, now time.Time) (store.Change, error) {
			change, err := store.DecideForceRelease(old, ns, req, now)
			rec = change.Record
			return change, err
		})
	if err != nil {
		return nil, err
	}
	return rec, nil
}

// InspectRecord implements [store.Records]. It reads past the loop, because all that a key
// can have of events would hold up everybody.
func (s *Store) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	if err := key.Validate(); err != nil {
		return store.Inspection{}, err
	}
	if !s.known.has(key.Namespace) {
		return store.Inspection{}, store.NamespaceUnknown(key.Namespace)
	}
	leave, err := s.inspecting.enter(ctx, key.Namespace)
	if err != nil {
		return store.Inspection{}, err
	}
	defer leave()
	return past(s, func() (store.Inspection, error) {
		read := s.read()
		inspection, err := s.inspect(ctx, &key, read)
		leave() // before what may wait in the namespace's share
		if vouched := s.vouch(ctx, key.Namespace, read); vouched != nil {
			return store.Inspection{}, vouched
		}
		if errors.Is(err, store.ErrRecordCorrupt) {
			s.damaged(err)
		}
		return inspection, err
	})
}

func (s *Store) inspect(ctx context.Context, key *store.Key, read reading) (store.Inspection, error) {
	v, err := s.view(ctx)
	if err != nil {
		return store.Inspection{}, err
	}
	defer v.it.Close()
	return v.inspect(key, read)
}

// ListRecords implements [store.Records]. Its order is that of the latest grants' buckets
// and then of the keys' digests. A damaged row is left out, logged and counted.
func (s *Store) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	if err := req.Validate(); err != nil {
		return store.RecordPage{}, err
	}
	if !s.known.has(req.Namespace) {
		return store.RecordPage{}, store.NamespaceUnknown(req.Namespace)
	}
	leave, err := s.listing.enter(ctx, req.Namespace)
	if err != nil {
		return store.RecordPage{}, err
	}
	defer leave()
	return past(s, func() (store.RecordPage, error) {
		read := s.read()
		page, err := s.readPage(ctx, req, read, scanBudget{rows: scanRows, bytes: scanBytes})
		leave() // before what may wait in the namespace's share
		if vouched := s.vouch(ctx, req.Namespace, read); vouched != nil {
			return store.RecordPage{}, vouched
		}
		if err != nil {
			return store.RecordPage{}, err
		}
		return page, nil
	})
}

// One listing looks at no more rows, and reads no more bytes, however few records it finds.
const (
	scanRows  = 10_000
	scanBytes = 32 << 20
)

// scanBudget is how much one call may still read.
type scanBudget struct{ rows, bytes int }

// spend reports whether there was budget left to read n bytes.
func (b *scanBudget) spend(n int) bool {
	ok := b.rows > 0 && b.bytes > 0
	b.rows, b.bytes = b.rows-1, b.bytes-n
	return ok
}

func (s *Store) readPage(ctx context.Context, req store.ListRequest, read reading, budget scanBudget) (store.RecordPage, error) {
	tier := read.known.namespaces[req.Namespace].Tier
	from, to := tierSpan(tier)
	if req.PageToken != "" {
		last, err := s.pages.Open(req)
		if err != nil {
			return store.RecordPage{}, err
		}
		from = slices.Concat(last, []byte{0}) // the row after it
	}
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return store.RecordPage{}, readError(err)
	}
	defer it.Close()
	page := store.RecordPage{Now: read.now}
	size := cmp.Or(req.PageSize, store.DefaultPageSize)
	var last []byte // the row looked at before
	for ok := it.First(); ok; ok = it.Next() {
		if err := ctx.Err(); err != nil {
			return store.RecordPage{}, err
		}
		spent := !budget.spend(len(it.Value()))
		rec, err := listed(it, req, read.now)
		if spent || rec != nil && len(page.Records) == size {
			page.NextPageToken = s.pages.Seal(req, last)
			break
		}
		if err != nil {
			s.damaged(err)
			if read.known.namespaces[req.Namespace].Placement.Move.Phase == store.MoveSealed {
				return store.RecordPage{}, corrupt(err) // whose it is cannot be read: it would be left behind
			}
		}
		if rec != nil {
			page.Records = append(page.Records, rec)
		}
		last = append(last[:0], it.Key()...)
	}
	if err := it.Error(); err != nil {
		s.damaged(err)
		return store.RecordPage{}, readError(err)
	}
	return page, nil
}

// listed returns the record under the iterator without its outcome, or nil if it is not
// asked for.
func listed(it *pebble.Iterator, req store.ListRequest, now time.Time) (*store.Record, error) {
	payload, err := unseal(it.Key(), it.Value())
	if err != nil {
		return nil, err
	}
	r, err := decodeRow(payload)
	if err != nil || r.rec.Key.Namespace != req.Namespace || !req.Filter.Matches(r.rec, now) {
		return nil, err
	}
	r.rec.Outcome = nil
	return r.rec, nil
}
