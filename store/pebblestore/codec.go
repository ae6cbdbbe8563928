package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/idemd/idemd/store"
)

// Every stored value is sealed: a version byte, the CRC-32C of its key and payload, the
// payload. A value that a damaged index hands out under another key does not pass.
const (
	sealVersion = 1
	sealLen     = 1 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamagedValue = errors.New("damaged value")

// seal fills in the header of value, whose first sealLen bytes are reserved for it.
func seal(key, value []byte) {
	value[0] = sealVersion
	binary.BigEndian.PutUint32(value[1:], sealSum(key, value[sealLen:]))
}

// unseal checks the header and returns the payload, which aliases value.
func unseal(key, value []byte) ([]byte, error) {
	switch {
	case len(value) < sealLen:
		return nil, fmt.Errorf("%w: %d bytes, too short", errDamagedValue, len(value))
	case value[0] != sealVersion:
		return nil, fmt.Errorf("%w: version %d, known is %d", errDamagedValue, value[0], sealVersion)
	case binary.BigEndian.Uint32(value[1:]) != sealSum(key, value[sealLen:]):
		return nil, fmt.Errorf("%w: checksum differs", errDamagedValue)
	}
	return value[sealLen:], nil
}

func sealSum(key, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, payload)
}

// row is a stored record with where it is and which events it has.
type row struct {
	rec    *store.Record
	bucket bucketID
	events []eventRef // oldest first
}

// eventRef is what a row knows of one of its events: its number, which grows from event to
// event; its kind, each of which has a quota; and a sum of all but its time, so that a
// repeated one is noticed unread.
type eventRef struct {
	n    uint64
	kind store.EventKind
	sum  eventSum
}

type eventSum [16]byte

// Flags of an encoded record.
const (
	flagUnsettled = 1 << iota
	flagOutcome
	flagBodyOmitted
	flagUnsettledSince // with flagUnsettled: it is known since when
	flagsKnown         = 1<<iota - 1
)

// zeroTime stands for the zero time.Time; no clock shows it.
const zeroTime = math.MinInt64

// appendRow appends the payload of r. The expiry comes first, see [peekExpiry].
func appendRow(b []byte, r *row) []byte {
	rec := r.rec
	for _, t := range [...]time.Time{rec.ExpiresAt, rec.GrantedAt, rec.LeaseEnd, rec.AttemptLimit, rec.EndedAt} {
		b = appendTime(b, t)
	}
	b = appendInt64(b, rec.Fence)
	b = appendInt64(b, rec.PreviousFence)
	b = appendInt64(b, int64(rec.Retention))
	b = append(b, byte(rec.State), byte(rec.LapsePolicy), byte(rec.ReleasedWith), recordFlags(rec))
	b = binary.AppendUvarint(b, uint64(rec.AttemptNumber))
	b = rec.Key.AppendEncoded(b)
	b = appendString(b, rec.AttemptID)
	b = binary.AppendUvarint(b, uint64(rec.Fingerprint.Version))
	b = appendString(b, rec.Fingerprint.Digest)
	b = binary.AppendUvarint(b, uint64(len(rec.Ended)))
	for _, id := range rec.Ended {
		b = appendString(b, id)
	}
	b = binary.AppendUvarint(b, uint64(len(r.events)))
	for i := range r.events {
		b = binary.AppendUvarint(b, r.events[i].n)
		b = append(b, byte(r.events[i].kind))
		b = append(b, r.events[i].sum[:]...)
	}
	if knownSince(rec) {
		b = appendTime(b, rec.UnsettledSince)
	}
	if rec.Outcome != nil {
		b = append(b, rec.OutcomeDigest[:]...)
		b = appendOutcome(b, rec.Outcome)
	}
	return b
}

// knownSince says that the row tells since when it is unsettled. One that was written before that
// was kept does not, and is read as unsettled since [store.LongAgo].
func knownSince(rec *store.Record) bool {
	return rec.Unsettled() && !rec.UnsettledSince.Equal(store.LongAgo)
}

func recordFlags(rec *store.Record) (flags byte) {
	if rec.Unsettled() {
		flags |= flagUnsettled
	}
	if knownSince(rec) {
		flags |= flagUnsettledSince
	}
	if rec.Outcome != nil {
		flags |= flagOutcome
		if rec.Outcome.BodyOmitted {
			flags |= flagBodyOmitted
		}
	}
	return flags
}

// decodeRow reverses appendRow. It accepts exactly what appendRow makes, and copies
// what it keeps. The outcome's digest is not compared.
func decodeRow(payload []byte) (*row, error) {
	d := decoder{rest: payload}
	rec := &store.Record{}
	for _, t := range [...]*time.Time{&rec.ExpiresAt, &rec.GrantedAt, &rec.LeaseEnd, &rec.AttemptLimit, &rec.EndedAt} {
		*t = d.time()
	}
	rec.Fence = d.int64()
	rec.PreviousFence = d.int64()
	rec.Retention = time.Duration(d.int64())
	rec.State = store.State(d.oneOf(byte(store.StateInProgress), byte(store.StateReleased)))
	rec.LapsePolicy = store.LapsePolicy(d.oneOf(byte(store.Takeover), byte(store.Hold)))
	rec.ReleasedWith = store.Effect(d.oneOf(0, byte(store.EffectUnknown)))
	flags := d.oneOf(0, flagsKnown)
	rec.AttemptNumber = int(d.uvarint(math.MaxInt))
	rec.Key = d.key()
	rec.AttemptID = d.string()
	rec.Fingerprint.Version = uint32(d.uvarint(math.MaxUint32))
	rec.Fingerprint.Digest = d.string()
	for range d.count() {
		rec.Ended = append(rec.Ended, d.string())
	}
	r := &row{rec: rec}
	for range d.count() {
		r.events = append(r.events, eventRef{n: d.uvarint(math.MaxUint64), kind: d.eventKind(), sum: eventSum(d.take(len(eventSum{})))})
	}
	rec.UnsettledSince = d.unsettledSince(flags)
	if flags&flagOutcome != 0 {
		rec.OutcomeDigest = store.OutcomeDigest(d.take(len(store.OutcomeDigest{})))
		rec.Outcome = d.outcome()
		rec.Outcome.BodyOmitted = flags&flagBodyOmitted != 0
	} else if flags&flagBodyOmitted != 0 {
		d.fail("no outcome, but its body is omitted")
	}
	if rec.Outcome != nil != (rec.State == store.StateCompleted) {
		d.fail("an outcome goes with the state COMPLETED only")
	}
	return r, d.finish()
}

// unsettledSince reads since when the record is unsettled, as far as its flags say that it is.
func (d *decoder) unsettledSince(flags byte) time.Time {
	switch flags & (flagUnsettled | flagUnsettledSince) {
	case 0:
		return time.Time{}
	case flagUnsettled:
		return store.LongAgo
	case flagUnsettledSince:
		d.fail("settled, but it is told since when it is not")
	}
	since := d.time()
	if since.IsZero() || since.Equal(store.LongAgo) {
		d.fail("unsettled since no time")
	}
	return since
}

func (d *decoder) key() store.Key {
	return store.Key{Namespace: d.string(), Scope: d.string(), ID: d.string(), Entity: d.string()}
}

// peekExpiry returns the expiry of an encoded row without decoding the rest.
func peekExpiry(payload []byte) (time.Time, error) {
	d := decoder{rest: payload}
	return d.time(), d.err
}

// peekKey returns the key of an encoded row without decoding the rest.
func peekKey(payload []byte) (store.Key, error) {
	d := decoder{rest: payload}
	d.take(8*8 + 4) // five times, three numbers, four bytes
	d.uvarint(math.MaxInt)
	return d.key(), d.err
}

func appendOutcome(b []byte, o *store.Outcome) []byte {
	b = appendBytes(b, o.Status)
	b = appendString(b, o.BodyType)
	b = appendBytes(b, o.Body)
	for _, list := range [...][]store.MetadataEntry{o.Header, o.Trailer} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, e := range list {
			b = appendString(b, e.Name)
			b = appendBytes(b, e.Value)
		}
	}
	return b
}

// outcome reads what appendOutcome wrote. Its bytes are copied together, once.
func (d *decoder) outcome() *store.Outcome {
	d.rest = append([]byte(nil), d.rest...)
	o := &store.Outcome{Status: d.bytes(), BodyType: d.string(), Body: d.bytes()}
	for _, list := range [...]*[]store.MetadataEntry{&o.Header, &o.Trailer} {
		for range d.count() {
			*list = append(*list, store.MetadataEntry{Name: d.string(), Value: d.bytes()})
		}
	}
	return o
}
