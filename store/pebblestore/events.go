package pebblestore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// Events are kept under keys of their own in the bucket of their record, so that they go
// with it. The row knows their numbers and sums; see [row].

// appendEvent appends the payload of an event. The time comes first, see [sumOf].
func appendEvent(b []byte, e *store.Event) []byte {
	b = appendTime(b, e.At)
	b = append(b, byte(e.Kind))
	b = appendInt64(b, e.Fence)
	b = appendInt64(b, e.NewFence)
	b = binary.AppendUvarint(b, uint64(e.AttemptNumber))
	b = appendString(b, e.Actor)
	b = appendString(b, e.Reason)
	if e.Outcome == nil {
		return append(b, 0)
	}
	omitted := byte(0)
	if e.Outcome.BodyOmitted {
		omitted = 1
	}
	b = append(b, 1, omitted)
	b = append(b, e.OutcomeDigest[:]...)
	b = binary.AppendUvarint(b, uint64(e.OutcomeSize))
	return appendOutcome(b, e.Outcome)
}

// decodeEvent reverses appendEvent.
func decodeEvent(payload []byte) (store.Event, error) {
	d := decoder{rest: payload}
	e := store.Event{At: d.time(), Kind: d.eventKind()}
	e.Fence, e.NewFence = d.int64(), d.int64()
	e.AttemptNumber = int(d.uvarint(math.MaxInt))
	e.Actor, e.Reason = d.string(), d.string()
	if d.oneOf(0, 1) == 1 {
		omitted := d.oneOf(0, 1)
		e.OutcomeDigest = store.OutcomeDigest(d.take(len(e.OutcomeDigest)))
		e.OutcomeSize = int(d.uvarint(math.MaxInt))
		e.Outcome = d.outcome()
		e.Outcome.BodyOmitted = omitted == 1
	}
	return e, d.finish()
}

func (d *decoder) eventKind() store.EventKind {
	return store.EventKind(d.oneOf(byte(store.EventTakeover), byte(store.EventImported)))
}

// sumOf identifies an event by all but its time.
func sumOf(payload []byte) eventSum {
	full := sha256.Sum256(payload[8:])
	return eventSum(full[:])
}

// addEvent adds an event to the row, as [store.AddEvent] does.
func (t *turn) addEvent(digest store.KeyDigest, r *row, e *store.Event) {
	value := appendEvent(make([]byte, sealLen, 128), e)
	added := eventRef{kind: e.Kind, sum: sumOf(value[sealLen:])}
	for _, kept := range r.events {
		if kept.sum == added.sum {
			return
		}
		added.n = kept.n + 1
	}
	drop := store.EventToDrop(r.events, func(kept eventRef) store.EventKind { return kept.kind }, added.kind)
	t.putEvent(appendEventKey(nil, r.bucket, digest, added.n), value)
	r.events = append(slices.Clone(r.events), added)
	if drop >= 0 {
		t.deleteEvent(appendEventKey(nil, r.bucket, digest, r.events[drop].n))
		r.events = slices.Delete(r.events, drop, drop+1)
	}
}

// carryEvents keeps the events of old with next, which has taken over their numbers, if
// that is in another bucket. If next has not, because it starts a new life of the key,
// they go.
func (t *turn) carryEvents(digest store.KeyDigest, old, next *row) error {
	if old == nil || len(old.events) == 0 {
		return nil
	}
	carried := len(next.events) > 0
	if carried && old.bucket == next.bucket {
		return nil
	}
	var payloads [][]byte
	if carried {
		var err error
		if payloads, err = readEvents(t.eventValue, digest, old); err != nil {
			return err
		}
	}
	for i, e := range old.events {
		t.deleteEvent(appendEventKey(nil, old.bucket, digest, e.n))
		if carried {
			value := append(make([]byte, sealLen), payloads[i]...)
			t.putEvent(appendEventKey(nil, next.bucket, digest, e.n), value)
		}
	}
	return nil
}

// eventValue returns the value of an event as the turn sees it, or nil.
func (t *turn) eventValue(key []byte) ([]byte, error) {
	if value, ok := t.events[string(key)]; ok {
		return value, nil
	}
	return valueOf(t.l.s.db, key)
}

// valueOf returns a copy of what is stored under the key, or nil.
func valueOf(db pebble.Reader, key []byte) ([]byte, error) {
	stored, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, readError(err)
	}
	defer closer.Close()
	return slices.Clone(stored), nil
}

// readEvents returns the payloads of a row's events, oldest first.
func readEvents(valueOf func(key []byte) ([]byte, error), digest store.KeyDigest, r *row) ([][]byte, error) {
	payloads := make([][]byte, len(r.events))
	for i, e := range r.events {
		key := appendEventKey(nil, r.bucket, digest, e.n)
		value, err := valueOf(key)
		if err != nil {
			return nil, err
		}
		if value == nil {
			return nil, corrupt(fmt.Errorf("event %x is missing", key))
		}
		payload, err := unseal(key, value)
		if err != nil {
			return nil, corrupt(fmt.Errorf("event %x: %w", key, err))
		}
		if len(payload) < 8 || sumOf(payload) != e.sum {
			return nil, corrupt(fmt.Errorf("event %x is not the record's", key))
		}
		payloads[i] = payload
	}
	return payloads, nil
}

// putEvent seals and writes an event; value is the turn's afterwards.
func (t *turn) putEvent(key, value []byte) {
	seal(key, value)
	_ = t.writes().Set(key, value, nil)
	if t.events == nil {
		t.events = map[string][]byte{}
	}
	t.events[string(key)] = value
}

func (t *turn) deleteEvent(key []byte) {
	_ = t.writes().Delete(key, nil)
	delete(t.events, string(key))
}
