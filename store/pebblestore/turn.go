package pebblestore

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// turn is the making of one batch: operations run in order, each sees what those before it
// wrote. All of them happen at one instant of the store's clock.
type turn struct {
	l      *loop
	now    time.Time
	batch  *pebble.Batch     // nil until something is written
	events map[string][]byte // events written in this turn, by key; not yet readable from Pebble
	// gone are the keys whose rows this turn has removed, and can still be read from Pebble. One
	// that has come since is in the cache.
	gone map[store.KeyDigest]bool
	// settled are the completed rows that answers of this turn are derived from, and what it
	// has taken the place of or removed.
	settled []settledRow
}

// writes returns the batch to write to.
func (t *turn) writes() *pebble.Batch {
	if t.batch == nil {
		t.batch = t.l.s.db.NewBatch()
	}
	return t.batch
}

// transition is a transition function with its request and answer bound.
type transition func(old *store.Record, ns *store.Namespace, now time.Time) (store.Change, error)

// decide runs one operation on a key.
func (t *turn) decide(key *store.Key, digest store.KeyDigest, decide transition) error {
	ns := t.l.namespaces[key.Namespace]
	if ns == nil {
		return store.NamespaceUnknown(key.Namespace)
	}
	old, err := t.find(ns.Tier, key, digest)
	if err != nil {
		return err
	}
	var rec *store.Record
	if old != nil {
		rec = old.rec
	}
	change, refusal := decide(rec, ns, t.now)
	after, err := t.apply(ns.Tier, digest, old, change)
	if err != nil {
		return err
	}
	if after != nil && after.rec.State == store.StateCompleted {
		t.settled = append(t.settled, settledRow{digest: digest, row: after})
	}
	return refusal
}

// find returns what is stored for the key, or nil. The row must not be changed.
func (t *turn) find(tier store.Tier, key *store.Key, digest store.KeyDigest) (*row, error) {
	r, err := t.current(tier, digest)
	if r == nil || err != nil {
		return nil, err
	}
	t.l.cache.put(digest, r)
	if r.rec.Key != *key {
		err := corrupt(errors.New("the record is of another key"))
		t.l.s.damaged(err)
		return nil, err
	}
	return r, nil
}

// current returns the row as this turn has it, or nil.
func (t *turn) current(tier store.Tier, digest store.KeyDigest) (*row, error) {
	if r := t.l.cache.get(digest); r != nil || t.gone[digest] {
		return r, nil
	}
	r, err := t.load(tier, digest)
	if err != nil {
		t.l.s.damaged(err)
		return nil, err
	}
	return r, nil
}

// load reads the row from Pebble, from the newest bucket that has it.
func (t *turn) load(tier store.Tier, digest store.KeyDigest) (*row, error) {
	var key [rowKeyLen]byte
	buckets := t.l.buckets[tier]
	for i := len(buckets) - 1; i >= 0; i-- {
		if !buckets[i].mayHold(digest) {
			continue
		}
		r, err := readRow(t.l.s.db, appendRowKey(key[:0], buckets[i].id, digest))
		if err != nil || r != nil {
			return r, err
		}
	}
	return nil, nil
}

// readRow returns the row stored under the key, or nil if there is none. The outcome's
// digest is checked.
func readRow(db pebble.Reader, key []byte) (*row, error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, readError(err)
	}
	defer closer.Close()
	r, err := openRow(key, value)
	if err != nil {
		return nil, corrupt(fmt.Errorf("row %x: %w", key, err))
	}
	return r, nil
}

// openRow decodes a stored row and checks it against its key and its outcome's digest.
func openRow(key, value []byte) (*row, error) {
	payload, err := unseal(key, value)
	if err != nil {
		return nil, err
	}
	r, err := decodeRow(payload)
	if err != nil {
		return nil, err
	}
	bucket, digest, ok := splitRowKey(key)
	if !ok || r.rec.Key.Digest() != digest {
		return nil, fmt.Errorf("%w: not the record of this key", errDamagedValue)
	}
	if r.rec.Outcome != nil && r.rec.Outcome.Digest() != r.rec.OutcomeDigest {
		return nil, fmt.Errorf("%w: outcome differs from its digest", errDamagedValue)
	}
	r.bucket = bucket
	return r, nil
}

// apply stores a change and returns the row after it. It reads what it needs before it
// writes anything, so that an error leaves the turn as it was.
func (t *turn) apply(tier store.Tier, digest store.KeyDigest, old *row, change store.Change) (*row, error) {
	if change.Record == nil && change.Event == nil {
		return old, nil
	}
	next := row{rec: change.Record}
	if next.rec == nil {
		next.rec = old.rec
	}
	next.bucket = bucketOf(tier, next.rec.GrantedAt)
	if old != nil {
		if old.rec.GrantedAt.Equal(next.rec.GrantedAt) {
			next.bucket = old.bucket // maintenance may have moved it forward
		}
		if change.Record == nil || !old.rec.Expired(t.now) {
			next.events = old.events
		}
	}
	if err := t.carryEvents(digest, old, &next); err != nil {
		t.l.s.damaged(err)
		return nil, err
	}
	if change.Event != nil {
		t.addEvent(digest, &next, change.Event)
	}
	t.put(digest, old, &next)
	return &next, nil
}

// put writes the row in the place of the old one.
func (t *turn) put(digest store.KeyDigest, old, next *row) {
	var key [rowKeyLen]byte
	b := t.writes()
	if old != nil && old.bucket != next.bucket {
		_ = b.Delete(appendRowKey(key[:0], old.bucket, digest), nil)
	}
	bucket := t.l.buckets.open(next.bucket)
	bucket.writes++
	if old == nil || old.bucket != next.bucket {
		bucket.filter.add(digest)
	}
	rowKey := appendRowKey(key[:0], next.bucket, digest)
	value := appendRow(append(t.l.encoded[:0], make([]byte, sealLen)...), next)
	seal(rowKey, value)
	_ = b.Set(rowKey, value, nil) // copies; fails only on a batch that is being committed
	t.l.encoded = value
	t.l.cache.put(digest, next)
}

// remove removes the row with its events.
func (t *turn) remove(digest store.KeyDigest, r *row) {
	for _, e := range r.events {
		t.deleteEvent(appendEventKey(nil, r.bucket, digest, e.n))
	}
	_ = t.writes().Delete(appendRowKey(nil, r.bucket, digest), nil)
	t.l.cache.remove(digest)
	if t.gone == nil {
		t.gone = map[store.KeyDigest]bool{}
	}
	t.gone[digest] = true
	t.settled = append(t.settled, settledRow{digest: digest})
}

// damaged tells operators about what a refusal does not say.
func (s *Store) damaged(err error) {
	var refusal *store.Error
	if errors.As(err, &refusal) && refusal.Cause != nil {
		err = refusal.Cause
	}
	s.opts.Logger.Error("a stored value cannot be read", "error", err)
	s.opts.Observer.Damaged(err)
}
