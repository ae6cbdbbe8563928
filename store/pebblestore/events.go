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
	return appendOutcome(append(b, 1, omitted), e.Outcome)
}

// decodeEvent reverses appendEvent.
func decodeEvent(payload []byte) (store.Event, error) {
	d := decoder{rest: payload}
	e := store.Event{At: d.time(), Kind: store.EventKind(d.oneOf(byte(store.EventTakeover), byte(store.EventForceReleased)))}
	e.Fence, e.NewFence = d.int64(), d.int64()
	e.AttemptNumber = int(d.uvarint(math.MaxInt))
	e.Actor, e.Reason = d.string(), d.string()
	if d.oneOf(0, 1) == 1 {
		omitted := d.oneOf(0, 1)
		e.Outcome = d.outcome()
		e.Outcome.BodyOmitted = omitted == 1
	}
	return e, d.finish()
}

// sumOf identifies an event by all but its time.
func sumOf(payload []byte) eventSum {
	full := sha256.Sum256(payload[8:])
	return eventSum(full[:])
}

// addEvent adds an event to the row and forgets the oldest beyond the limit. An event that
// differs from a kept one only in its time is the same, sent again.
func (t *turn) addEvent(digest store.KeyDigest, r *row, e *store.Event) {
	value := appendEvent(make([]byte, sealLen, 128), e)
	sum := sumOf(value[sealLen:])
	if slices.Contains(r.eventSums, sum) {
		return
	}
	t.putEvent(appendEventKey(nil, r.bucket, digest, r.firstEvent+uint64(len(r.eventSums))), value)
	r.eventSums = append(slices.Clip(r.eventSums), sum)
	for len(r.eventSums) > store.MaxEvents {
		t.deleteEvent(appendEventKey(nil, r.bucket, digest, r.firstEvent))
		r.firstEvent++
		r.eventSums = r.eventSums[1:]
	}
}

// carryEvents keeps the events of old with next, which has taken over their numbers, if
// that is in another bucket. If next has not, because it starts a new life of the key,
// they go.
func (t *turn) carryEvents(digest store.KeyDigest, old, next *row) error {
	if old == nil || len(old.eventSums) == 0 {
		return nil
	}
	carried := len(next.eventSums) > 0
	if carried && old.bucket == next.bucket {
		return nil
	}
	var values [][]byte
	if carried {
		var err error
		if values, err = t.readEvents(digest, old); err != nil {
			return err
		}
	}
	for i := range old.eventSums {
		n := old.firstEvent + uint64(i)
		t.deleteEvent(appendEventKey(nil, old.bucket, digest, n))
		if carried {
			value := append(make([]byte, sealLen), values[i]...)
			t.putEvent(appendEventKey(nil, next.bucket, digest, n), value)
		}
	}
	return nil
}

// readEvents returns the payloads of a row's events, oldest first.
func (t *turn) readEvents(digest store.KeyDigest, r *row) ([][]byte, error) {
	payloads := make([][]byte, len(r.eventSums))
	for i := range payloads {
		key := appendEventKey(nil, r.bucket, digest, r.firstEvent+uint64(i))
		payload, err := t.readEvent(key)
		if err != nil {
			return nil, err
		}
		if len(payload) < 8 || sumOf(payload) != r.eventSums[i] {
			return nil, corrupt(fmt.Errorf("event %x is not the record's", key))
		}
		payloads[i] = payload
	}
	return payloads, nil
}

func (t *turn) readEvent(key []byte) ([]byte, error) {
	value, ok := t.events[string(key)]
	if !ok {
		stored, closer, err := t.l.s.db.Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil, corrupt(fmt.Errorf("event %x is missing", key))
		}
		if err != nil {
			return nil, readError(err)
		}
		value = slices.Clone(stored)
		_ = closer.Close()
	}
	payload, err := unseal(key, value)
	if err != nil {
		return nil, corrupt(fmt.Errorf("event %x: %w", key, err))
	}
	return payload, nil
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
