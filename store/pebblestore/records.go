package pebblestore

import (
	"cmp"
	"context"
	"encoding/hex"
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
		func(old *store.Record, _ *store.Namespace, now time.Time) (store.Change, error) {
			change, err := store.DecideForceRelease(old, req, now)
			rec = change.Record
			return change, err
		})
	if err != nil {
		return nil, err
	}
	return rec, nil
}

// InspectRecord implements [store.Records].
func (s *Store) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	if err := key.Validate(); err != nil {
		return store.Inspection{}, err
	}
	if !s.known.has(key.Namespace) {
		return store.Inspection{}, store.NamespaceUnknown(key.Namespace)
	}
	var inspection store.Inspection
	digest := key.Digest()
	err := s.do(ctx, classSettle, key.Namespace, 0, func(t *turn) (err error) {
		inspection, err = t.inspect(&key, digest)
		return err
	})
	if err != nil {
		return store.Inspection{}, err
	}
	return inspection, nil
}

func (t *turn) inspect(key *store.Key, digest store.KeyDigest) (store.Inspection, error) {
	ns := t.l.namespaces[key.Namespace]
	if ns == nil {
		return store.Inspection{}, store.NamespaceUnknown(key.Namespace)
	}
	r, err := t.find(ns.Tier, key, digest)
	if err != nil {
		return store.Inspection{}, err
	}
	if r == nil || r.rec.Expired(t.now) {
		return store.Inspection{}, store.KeyNotFound()
	}
	inspection := store.Inspection{Record: r.rec, Now: t.now}
	payloads, err := t.readEvents(digest, r)
	if err != nil {
		t.l.s.damaged(err)
		return store.Inspection{}, err
	}
	for _, payload := range payloads {
		event, err := decodeEvent(payload)
		if err != nil {
			t.l.s.damaged(err)
			return store.Inspection{}, corrupt(err)
		}
		inspection.Events = append(inspection.Events, event)
	}
	return inspection, nil
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
	leave, err := s.enter()
	if err != nil {
		return store.RecordPage{}, s.failureOr(err)
	}
	defer leave()
	var tier store.Tier
	var now time.Time
	err = s.do(ctx, classSettle, req.Namespace, 0, func(t *turn) error {
		ns := t.l.namespaces[req.Namespace]
		if ns == nil {
			return store.NamespaceUnknown(req.Namespace)
		}
		tier, now = ns.Tier, t.now
		return nil
	})
	if err != nil {
		return store.RecordPage{}, err
	}
	page, err := s.readPage(ctx, req, tier, now)
	if err != nil {
		return store.RecordPage{}, err
	}
	if _, err := s.barrier(ctx); err != nil {
		return store.RecordPage{}, err
	}
	return page, nil
}

// barrier returns the store's time when all that could be read from Pebble before the
// call is synced.
func (s *Store) barrier(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := s.do(ctx, classSettle, "", 0, func(t *turn) error {
		now = t.now
		return nil
	})
	if err != nil {
		return time.Time{}, err
	}
	return now, nil
}

func (s *Store) readPage(ctx context.Context, req store.ListRequest, tier store.Tier, now time.Time) (store.RecordPage, error) {
	page := store.RecordPage{Now: now}
	from, to := tierSpan(tier)
	if req.PageToken != "" {
		last, ok := decodePageToken(req.PageToken, tier)
		if !ok {
			return page, store.Refuse(store.ErrInvalidArgument, "page token is not one that this namespace's listing gave")
		}
		from = slices.Concat(last, []byte{0}) // the row after it
	}
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return page, readError(err)
	}
	defer it.Close()
	size := cmp.Or(req.PageSize, store.DefaultPageSize)
	var last []byte
	for ok := it.First(); ok; ok = it.Next() {
		if err := ctx.Err(); err != nil {
			return page, err
		}
		rec := s.listed(it, req, now)
		if rec == nil {
			continue
		}
		if len(page.Records) == size {
			page.NextPageToken = encodePageToken(last)
			break
		}
		page.Records = append(page.Records, rec)
		last = append(last[:0], it.Key()...)
	}
	if err := it.Error(); err != nil {
		s.damaged(err)
		return page, readError(err)
	}
	return page, nil
}

// listed returns the record under the iterator without its outcome, or nil if it is not
// asked for.
func (s *Store) listed(it *pebble.Iterator, req store.ListRequest, now time.Time) *store.Record {
	payload, err := unseal(it.Key(), it.Value())
	if err != nil {
		s.damaged(err)
		return nil
	}
	r, err := decodeRow(payload)
	if err != nil {
		s.damaged(err)
		return nil
	}
	if r.rec.Key.Namespace != req.Namespace || !req.Filter.Matches(r.rec, now) {
		return nil
	}
	r.rec.Outcome = nil
	return r.rec
}

// A page token is the last row's key without its prefix and tier, in hexadecimal.
func encodePageToken(rowKey []byte) string { return hex.EncodeToString(rowKey[2:]) }

func decodePageToken(token string, tier store.Tier) ([]byte, bool) {
	rest, err := hex.DecodeString(token)
	return append([]byte{prefixRow, byte(tier)}, rest...), err == nil && len(rest) == rowKeyLen-2
}
