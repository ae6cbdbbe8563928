package pebblestore

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

func at(d time.Duration) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(d)
}

func inProgressRow() *row {
	return &row{rec: &store.Record{
		Key:   store.Key{Namespace: "default", Scope: "/a/B", ID: "id", Entity: "é"},
		State: store.StateInProgress, Fence: 7, AttemptID: "a\x00b", AttemptNumber: 1,
		GrantedAt: at(0), LeaseEnd: at(time.Second), AttemptLimit: at(time.Minute),
		LapsePolicy: store.Hold, Retention: time.Hour,
	}}
}

func completedRow() *row {
	r := inProgressRow()
	rec := r.rec
	rec.State, rec.LapsePolicy = store.StateCompleted, store.Takeover
	rec.PreviousFence, rec.UnsettledSince, rec.ReleasedWith = 5, at(-time.Minute), store.EffectUnknown
	rec.Fingerprint = store.Fingerprint{Version: 2, Digest: "digest"}
	rec.Ended = []string{"x", "y"}
	rec.EndedAt, rec.ExpiresAt = at(2*time.Second), at(2*time.Hour)
	rec.Outcome = &store.Outcome{
		Status: []byte("s"), Body: []byte("body"), BodyType: "T", BodyOmitted: true,
		Header:  []store.MetadataEntry{{Name: "h", Value: []byte("v")}, {Name: "h"}},
		Trailer: []store.MetadataEntry{{Name: "t", Value: []byte{0, 255}}},
	}
	rec.OutcomeDigest = rec.Outcome.Digest()
	r.events = []eventRef{{3, store.EventTakeover, eventSum{1}}, {300, store.EventForceReleased, eventSum{2}}}
	return r
}

func emptyOutcomeRow() *row {
	r := inProgressRow()
	r.rec.State, r.rec.Outcome = store.StateCompleted, &store.Outcome{}
	r.rec.OutcomeDigest = r.rec.Outcome.Digest()
	return r
}

// oldUnsettledRow is a row from before it was kept since when a record is unsettled.
func oldUnsettledRow() *row {
	r := inProgressRow()
	r.rec.UnsettledSince = store.LongAgo
	return r
}

// A row from before it was kept since when a record is unsettled: written then, it had the bytes
// of this one, and is read as unsettled for as long as can be.
func TestOldUnsettledRow(t *testing.T) {
	settled := appendRow(nil, inProgressRow())
	payload := appendRow(nil, oldUnsettledRow())
	const flags = 8*8 + 3 // behind five times, three numbers and three bytes
	settled[flags] |= flagUnsettled
	if !bytes.Equal(payload, settled) {
		t.Errorf("written as\n%x, want\n%x", payload, settled)
	}
	got, err := decodeRow(settled)
	if err != nil || !got.rec.UnsettledSince.Equal(store.LongAgo) {
		t.Errorf("read as %+v, %v", got, err)
	}
	settled[flags] |= flagUnsettledSince
	if got, err := decodeRow(settled); err == nil {
		t.Errorf("without the time that is announced: read as %+v", got.rec)
	}
}

func TestRowComesBack(t *testing.T) {
	for name, r := range map[string]*row{"in progress": inProgressRow(), "completed": completedRow(), "empty outcome": emptyOutcomeRow(), "old unsettled": oldUnsettledRow()} {
		payload := appendRow(nil, r)
		got, err := decodeRow(payload)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, r) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got.rec, r.rec)
		}
		expiry, err := peekExpiry(payload)
		if err != nil || !expiry.Equal(r.rec.ExpiresAt) {
			t.Errorf("%s: peekExpiry = %v, %v; want %v", name, expiry, err, r.rec.ExpiresAt)
		}
	}
}

// What decodeRow keeps must not hang on Pebble's memory.
func TestRowIsCopied(t *testing.T) {
	r := completedRow()
	payload := appendRow(nil, r)
	got, err := decodeRow(payload)
	if err != nil {
		t.Fatal(err)
	}
	clear(payload)
	if !reflect.DeepEqual(got, r) {
		t.Error("a decoded row changes with the bytes it was made from")
	}
}

func TestEveryFlippedBitOfARowIsSeen(t *testing.T) {
	r := completedRow()
	r.bucket = bucketOf(store.TierDay, r.rec.GrantedAt)
	key := appendRowKey(nil, r.bucket, r.rec.Key.Digest())
	value := appendRow(make([]byte, sealLen), r)
	seal(key, value)
	if _, err := openRow(key, value); err != nil {
		t.Fatal(err)
	}
	for i := range len(value) * 8 {
		value[i/8] ^= 1 << (i % 8)
		if _, err := openRow(key, value); !errors.Is(err, errDamagedValue) {
			t.Fatalf("bit %d flipped: %v", i, err)
		}
		value[i/8] ^= 1 << (i % 8)
	}
	other := bytes.Clone(key)
	other[len(other)-1] ^= 1
	if _, err := openRow(other, value); !errors.Is(err, errDamagedValue) {
		t.Errorf("under another key: %v", err)
	}
	for n := range len(value) {
		if _, err := openRow(key, value[:n]); !errors.Is(err, errDamagedValue) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

// A row whose seal is right but whose outcome is not the one that was recorded.
func TestOutcomeIsComparedWithItsDigest(t *testing.T) {
	r := completedRow()
	r.rec.Outcome.Body = []byte("BODY")
	key := appendRowKey(nil, bucketOf(store.TierDay, r.rec.GrantedAt), r.rec.Key.Digest())
	value := appendRow(make([]byte, sealLen), r)
	seal(key, value)
	if _, err := openRow(key, value); !errors.Is(err, errDamagedValue) {
		t.Errorf("openRow: %v", err)
	}
}

func TestEventComesBack(t *testing.T) {
	for _, e := range []store.Event{
		{At: at(1), Kind: store.EventTakeover, Fence: 1, AttemptNumber: 2, NewFence: 3},
		{At: at(2), Kind: store.EventLateOutcome, Fence: 1, Outcome: completedRow().rec.Outcome, OutcomeDigest: store.OutcomeDigest{1, 2}, OutcomeSize: 300},
		{At: at(3), Kind: store.EventForceReleased, Actor: "me", Reason: "stuck", Outcome: &store.Outcome{}},
	} {
		e.At = e.At.Truncate(time.Microsecond)
		got, err := decodeEvent(appendEvent(nil, &e))
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("got %+v, %v; want %+v", got, err, e)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range []*row{inProgressRow(), completedRow(), emptyOutcomeRow(), oldUnsettledRow()} {
		f.Add(appendRow(nil, r))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := decodeRow(payload)
		if err != nil {
			return
		}
		if again := appendRow(nil, r); !bytes.Equal(again, payload) {
			t.Errorf("decoded and encoded again:\n got %x\nwant %x", again, payload)
		}
	})
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add(appendEvent(nil, &store.Event{At: at(0), Kind: store.EventLateOutcome, Outcome: completedRow().rec.Outcome}))
	f.Add(appendEvent(nil, &store.Event{Kind: store.EventResolved, Actor: "a", Reason: "r"}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := decodeEvent(payload)
		if err != nil {
			return
		}
		if again := appendEvent(nil, &e); !bytes.Equal(again, payload) {
			t.Errorf("decoded and encoded again:\n got %x\nwant %x", again, payload)
		}
	})
}
