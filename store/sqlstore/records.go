package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// Resolve implements [store.Records].
func (s *Store) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	return s.operate(ctx, req.Key, req.Validate(), func(ns *store.Namespace, old *store.Record, now time.Time) (store.Change, error) {
		return store.DecideResolve(old, ns, req, now)
	})
}

// ForceRelease implements [store.Records].
func (s *Store) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	return s.operate(ctx, req.Key, req.Validate(), func(ns *store.Namespace, old *store.Record, now time.Time) (store.Change, error) {
		return store.DecideForceRelease(old, ns, req, now)
	})
}

// operate carries out what an operator orders. It is not sent again when it may have taken
// effect: the repeat would be about another fence.
func (s *Store) operate(ctx context.Context, key store.Key, invalid error,
	decide func(*store.Namespace, *store.Record, time.Time) (store.Change, error),
) (*store.Record, error) {
	var rec *store.Record
	err := s.onKey(ctx, key, invalid, func(t *task, ns *store.Namespace) error {
		t.once = true
		t.decide = func(old *store.Record, now, _ time.Time) (store.Change, error) {
			change, err := decide(ns, old, now)
			rec = change.Record
			return change, err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rec, nil
}

// InspectRecord implements [store.Records].
func (s *Store) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	var inspection store.Inspection
	err := s.onKey(ctx, key, key.Validate(), func(t *task, ns *store.Namespace) error {
		t.reads = true
		t.quick = func(ctx context.Context) (found, bool, error) {
			rows, now, err := s.readRows(ctx, ns.Tier, [][]byte{t.digest[:]}, true)
			if err != nil {
				return found{}, false, err
			}
			f, err := rows.answer(t.digest, now)
			switch {
			case err != nil:
				return f, false, err
			case f.row == nil || f.row.rec.Expired(timeOf(now)):
				return f, true, store.KeyNotFound()
			}
			inspection = store.Inspection{Record: f.row.rec, Events: f.row.events, Now: decidedAt(f.row.rec, now)}
			return f, true, nil
		}
		return nil
	})
	if err != nil {
		return store.Inspection{}, err
	}
	return inspection, nil
}

const (
	// scanRows is how many rows one statement of a listing looks at.
	scanRows = 2000
	// listRows is how many rows one listing looks at, however few records it finds.
	listRows = 5 * scanRows
)

// ListRecords implements [store.Records]. Its order is that of the latest grants' buckets and
// then of the keys' digests. A damaged row is left out, logged and counted.
func (s *Store) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	if err := req.Validate(); err != nil {
		return store.RecordPage{}, err
	}
	snap, err := s.reread(ctx)
	if err != nil {
		return store.RecordPage{}, err
	}
	ns, err := snap.known(req.Namespace)
	if err != nil {
		return store.RecordPage{}, err
	}
	from := listPlace{after: []byte{}}
	if req.PageToken != "" {
		place, err := s.pages.Open(req)
		if err != nil {
			return store.RecordPage{}, err
		}
		from = decodePlace(place)
	}
	if err := s.awaitCommits(ctx, ns); err != nil {
		return store.RecordPage{}, err
	}
	l := &listing{s: s, req: req, size: cmp.Or(req.PageSize, store.DefaultPageSize), budget: listRows, sealed: ns.Placement.Move.Phase == store.MoveSealed}
	for _, id := range snap.buckets[ns.Tier] {
		if id.start < from.start {
			continue
		}
		if id.start > from.start {
			from = listPlace{start: id.start, after: []byte{}}
		}
		full, err := l.bucket(ctx, id, from.after)
		if err != nil {
			return store.RecordPage{}, s.listError(ctx, err)
		}
		if full {
			return l.page, nil
		}
	}
	if l.page.Now.IsZero() {
		l.page.Now = timeOf(s.clock.estimate())
	}
	return l.page, nil
}

// awaitCommits lets what was sent before a namespace was sealed be committed: what is listed
// then is all that is to be copied, once the seal is in force.
func (s *Store) awaitCommits(ctx context.Context, ns *store.Namespace) error {
	if ns.Placement.Move.Phase != store.MoveSealed || !s.dialect.needsSeal() || seeded("commits") {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Timing.window())
	defer cancel()
	err := s.seal.ended(bounded)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case bounded.Err() == nil:
		return unavailable(err)
	}
	return &store.Error{
		Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Cause: err,
		Detail: fmt.Sprintf("namespace %q is sealed, and the database still runs a transaction from before; until it ends nobody knows all records: end it (pg_stat_activity shows it)", ns.Name),
	}
}

func (s *Store) listError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, store.ErrRecordCorrupt) {
		return err
	}
	if faultOf(err) == faultGone {
		s.catalog.kick()
	}
	return unavailable(err)
}

// listing is one page in the making.
type listing struct {
	s      *Store
	req    store.ListRequest
	size   int
	budget int  // rows that may still be looked at
	sealed bool // the namespace: all of it is to be carried to another store
	page   store.RecordPage
}

// bucket lists from one bucket, and says whether the page ends in it.
func (l *listing) bucket(ctx context.Context, id bucketID, after []byte) (full bool, err error) {
	for {
		last, err := l.rows(ctx, id, after)
		if err != nil || last == nil {
			return false, err
		}
		if len(l.page.Records) == l.size || l.budget <= 0 {
			l.page.NextPageToken = l.s.pages.Seal(l.req, listPlace{start: id.start, after: last}.encode())
			return true, nil
		}
		after = last
	}
}

// listedColumns are recordColumns without the outcome, which would be read in vain.
var listedColumns = columns(slices.DeleteFunc(slices.Clone(recordColumns), func(name string) bool { return name == "outcome" }), "r")

// rows looks at the rows of a bucket after a digest: as many as one statement may, and no
// more than fill the page. Last is the last it looked at, nil if it came to the end.
func (l *listing) rows(ctx context.Context, id bucketID, after []byte) (last []byte, err error) {
	table := id.table(l.s.opts.Region)
	var now int64
	err = l.s.pool.QueryRow(ctx, fmt.Sprintf("SELECT %s, (SELECT digest FROM %s WHERE digest > $1 ORDER BY digest LIMIT 1 OFFSET %d)",
		us(l.s.opts.Clock.Now), table, scanRows-1), after).Scan(&now, &last)
	if err != nil {
		return nil, err
	}
	if err := l.s.clock.check(now); err != nil {
		return nil, err
	}
	l.page.Now = timeOf(now)
	found, err := l.matching(ctx, table, after, last, now)
	if err != nil {
		return nil, err
	}
	if missing := l.size - len(l.page.Records); len(found) == missing {
		last = found[missing-1].digest
	}
	l.budget -= scanRows
	for _, st := range found {
		rec, err := st.listed()
		if err != nil {
			l.s.opts.Observer.Damaged(err)
			l.s.opts.Logger.Error("a stored record is damaged", "bucket", table, "error", err)
			if l.sealed {
				return nil, corrupt(err)
			}
			continue
		}
		if l.req.Filter.Matches(rec, l.page.Now) {
			l.page.Records = append(l.page.Records, rec)
		}
	}
	return last, nil
}

var lastDigest = bytes.Repeat([]byte{0xff}, sha256.Size)

// matching reads the rows after a digest, up to another if that is not nil, which the filter
// chooses. The encoding of a key begins with its namespace and scope and ends with its entity, so
// others' rows are not sent, but for the few whose longer entity ends as the one that is asked for.
func (l *listing) matching(ctx context.Context, table string, after, upTo []byte, now int64) ([]*stored, error) {
	filter := l.req.Filter
	prefix, suffix := scopePrefix(l.req.Namespace, filter.Scope), entitySuffix(filter.Entity)
	if upTo == nil {
		upTo = lastDigest
	}
	rows, err := l.s.pool.Query(ctx, fmt.Sprintf(`SELECT %s FROM %s AS r
WHERE r.digest > $1 AND r.digest <= $2 AND r.state <> %d AND substring(r.key from 1 for octet_length($3::bytea)) = $3
  AND substring(r.key from octet_length(r.key) - octet_length($8::bytea) + 1) = $8
  AND (r.expires_at IS NULL OR r.expires_at > $4) AND ($5::int2 = 0 OR r.state = $5::int2)
  AND (NOT $6::bool OR r.state = %d AND r.lease_end <= $4)
ORDER BY r.digest LIMIT $7`, listedColumns, table, stateMoved, store.StateInProgress),
		after, upTo, prefix, now, int16(filter.State), filter.Lapsed, l.size-len(l.page.Records), suffix)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*stored, error) {
		st := &stored{}
		targets := st.targets()
		return st, row.Scan(slices.Delete(targets, len(targets)-2, len(targets)-1)...)
	})
}

// namespacePrefix is what the encodings of a namespace's keys begin with, and no others.
func namespacePrefix(name string) []byte {
	prefix := store.Key{Namespace: name}.AppendEncoded(nil)
	return prefix[:len(prefix)-3] // without the empty scope, id and entity
}

// scopePrefix is the same of the keys of a scope; of the namespace's if the scope is empty.
func scopePrefix(namespace, scope string) []byte {
	if scope == "" {
		return namespacePrefix(namespace)
	}
	prefix := store.Key{Namespace: namespace, Scope: scope}.AppendEncoded(nil)
	return prefix[:len(prefix)-2] // without the empty id and entity
}

// entitySuffix is what the encodings of an entity's keys end with; nothing if it is empty.
func entitySuffix(entity string) []byte {
	if entity == "" {
		return []byte{}
	}
	return store.Key{Entity: entity}.AppendEncoded(nil)[3:] // without the empty namespace, scope and id
}

// listed makes the record of a row that was read without its outcome.
func (s *stored) listed() (*store.Record, error) {
	without := *s
	without.outcomeDigest = nil
	if s.state == int16(store.StateCompleted) {
		without.state = int16(store.StateInProgress)
	}
	rec, err := without.record()
	if err != nil {
		return nil, err
	}
	rec.State = store.State(s.state)
	if len(s.outcomeDigest) == len(rec.OutcomeDigest) {
		rec.OutcomeDigest = store.OutcomeDigest(s.outcomeDigest)
	}
	return rec, nil
}

// listPlace is where a listing goes on: in a bucket, after a digest.
type listPlace struct {
	start int64
	after []byte
}

// encode returns the bucket's start and the digest. Of a damaged row the digest may have any length.
func (p listPlace) encode() []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(p.start)), p.after...)
}

// decodePlace reads what encode made.
func decodePlace(b []byte) listPlace {
	return listPlace{start: int64(binary.BigEndian.Uint64(b)), after: b[8:]}
}
