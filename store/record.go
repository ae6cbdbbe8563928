package store

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"
)

// State is where a record stands. What a record means also depends on the time:
// see [Record.Lapsed] and [Record.Expired].
type State uint8

// The states of a record.
const (
	StateInProgress State = iota + 1 // an attempt was granted and has not ended with an outcome
	StateCompleted                   // an outcome is stored and answers every repeat
	StateReleased                    // the last attempt had no effect; the key can be claimed again
)

// LapsePolicy says what a Claim gets when the last attempt's lease ended without
// an outcome, so that nobody knows whether its effect happened.
type LapsePolicy uint8

// The lapse policies.
const (
	Takeover LapsePolicy = iota + 1 // the next claimer is granted the key, told to check and then act
	Hold                            // the key stays unresolved until its holder or an operator settles it
)

// Effect is what the holder says when it gives a key up without an outcome.
type Effect uint8

// The effects a Release can declare.
const (
	EffectNone    Effect = iota + 1 // nothing happened: the key may be claimed afresh
	EffectUnknown                   // it may have happened: the lease lapses now
)

// Fingerprint is a digest of the request that an intent carries. The same key with
// another fingerprint is a caller's bug.
//
// An empty Digest means "no fingerprint", is explicit, and matches only itself.
type Fingerprint struct {
	// Version tags the algorithm that made Digest. Zero is the application's own.
	// It is zero when Digest is empty.
	Version uint32
	// Digest is 0 to 64 opaque bytes.
	Digest string
}

// UnknownFingerprint is that of a record whose request is not known, because it was imported.
// It cannot be compared with any other, also not with an empty one. No request carries it.
var UnknownFingerprint = Fingerprint{Version: math.MaxUint32, Digest: "unknown"}

// Match is how two fingerprints compare.
type Match uint8

// The results of [Fingerprint.Compare].
const (
	MatchEqual        Match = iota + 1 // the same request, or both empty
	MatchDifferent                     // another request: a caller's bug
	MatchIncomparable                  // made by two algorithms: never called a mismatch, but counted
)

// Compare says whether f and g stand for the same request.
func (f Fingerprint) Compare(g Fingerprint) Match {
	switch {
	case f == UnknownFingerprint || g == UnknownFingerprint:
		return MatchIncomparable
	case f == g:
		return MatchEqual
	case f.Digest == "" || g.Digest == "" || f.Version == g.Version:
		return MatchDifferent
	default:
		return MatchIncomparable
	}
}

// MetadataEntry is one response header or trailer.
type MetadataEntry struct {
	Name  string
	Value []byte
}

// Outcome is what an attempt ended with, given back byte for byte to every repeat.
type Outcome struct {
	// Status is a serialized google.rpc.Status; empty means OK.
	Status []byte
	// Body is the serialized response, BodyType its type (for example a protobuf
	// message name or a media type).
	Body     []byte
	BodyType string
	// BodyOmitted says that the attempt succeeded but its response was too large
	// to store. Body is then empty.
	BodyOmitted bool
	// Header and Trailer hold allow-listed response metadata, in order.
	Header  []MetadataEntry
	Trailer []MetadataEntry
}

// OutcomeDigest identifies an outcome. Equal digests mean equal outcomes.
type OutcomeDigest [sha256.Size]byte

// Size returns how many bytes of o count towards the outcome limit.
func (o *Outcome) Size() int {
	n := len(o.Status) + len(o.Body) + len(o.BodyType)
	for _, list := range [...][]MetadataEntry{o.Header, o.Trailer} {
		for _, e := range list {
			n += len(e.Name) + len(e.Value)
		}
	}
	return n
}

// Digest returns the SHA-256 over "idemd.outcome.v1" and then, in order: status,
// body type, body (each as its length in 8 big-endian bytes and its bytes), one byte
// that is 1 if the body was omitted, and for header and trailer the count of entries
// (8 big-endian bytes) with name and value of each (length and bytes).
func (o *Outcome) Digest() OutcomeDigest {
	var small [512]byte // most outcomes fit and need no memory of their own
	b := append(small[:0], "idemd.outcome.v1"...)
	b = appendField(b, o.Status)
	b = appendField(b, o.BodyType)
	b = appendField(b, o.Body)
	if o.BodyOmitted {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	for _, list := range [...][]MetadataEntry{o.Header, o.Trailer} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(list)))
		for _, e := range list {
			b = appendField(b, e.Name)
			b = appendField(b, e.Value)
		}
	}
	return sha256.Sum256(b)
}

func appendField[T string | []byte](b []byte, field T) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(field)))
	return append(b, field...)
}

// MaxEndedAttempts is how many ended attempt ids a record remembers.
const MaxEndedAttempts = 8

// Record is what a store keeps for one key. All times are by the store's clock, in
// UTC and whole microseconds. A Record is never changed in place: the transition
// functions return a new one.
type Record struct {
	Key   Key
	State State

	// Fence and AttemptID name the current attempt; AttemptNumber counts grants of
	// this live record from 1. AttemptID is empty once an operator has ended it.
	Fence         int64
	PreviousFence int64 // of the attempt before this one in this live record; zero if none
	AttemptID     string
	AttemptNumber int
	Fingerprint   Fingerprint

	GrantedAt    time.Time
	LeaseEnd     time.Time
	AttemptLimit time.Time // GrantedAt + max attempt: no lease or late Complete goes beyond it
	EndedAt      time.Time // when it was completed or released; zero before
	ExpiresAt    time.Time // zero: never (a lapse under Hold that nobody settled)

	// LapsePolicy and Retention are stamped at the grant.
	LapsePolicy LapsePolicy
	Retention   time.Duration

	// UnsettledSince, stamped at the grant, is when the earliest attempt before the current
	// one was granted of which nobody has said what became of it. Zero: there is none. It is
	// [LongAgo] where only that there is one is known. What settles the record clears it.
	UnsettledSince time.Time

	// ReleasedWith is the effect with which the current attempt gave the key up;
	// zero if it did not.
	ReleasedWith Effect

	// Ended holds the ids of the last attempts that ended without an outcome,
	// oldest first, at most MaxEndedAttempts.
	Ended []string

	// Outcome and OutcomeDigest are set in StateCompleted.
	Outcome       *Outcome
	OutcomeDigest OutcomeDigest
}

// LongAgo stands for a time of which is known only that it has been: for what is as old as it
// can be. Whatever is counted from it has run out, which is the safe way to be wrong.
var LongAgo = time.Unix(0, 0).UTC()

// Unsettled reports whether an attempt before the current one may have acted. The record as a
// whole is unsettled then, and also if it is lapsed itself.
func (r *Record) Unsettled() bool { return !r.UnsettledSince.IsZero() }

// earliestUnsettled is when the earliest attempt was granted, the current one included, that
// may have acted if the current one may have.
func (r *Record) earliestUnsettled() time.Time {
	if r.Unsettled() {
		return r.UnsettledSince
	}
	return r.GrantedAt
}

// Lapsed reports whether the record's attempt lost its lease with no outcome by now.
func (r *Record) Lapsed(now time.Time) bool {
	return r.State == StateInProgress && !now.Before(r.LeaseEnd)
}

// Expired reports whether the record no longer answers repeats at now. Whether an
// expired record is still stored changes nothing but the next fence.
func (r *Record) Expired(now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt)
}

// EventKind says what an [Event] tells.
type EventKind uint8

// The kinds of events.
const (
	EventTakeover      EventKind = iota + 1 // a lapsed key was granted to another attempt
	EventLateOutcome                        // an outcome came too late to count; kept as evidence
	EventResolved                           // an operator settled a lapsed key
	EventForceReleased                      // an operator ended a held attempt
	EventImported                           // an operator said what became of a forgotten key
)

// Event is something about a record that an operator wants to know afterwards. A store keeps
// the newest [MaxEvents] of each kind.
type Event struct {
	At   time.Time
	Kind EventKind
	// Fence and AttemptNumber are those of the attempt that the event is about: the
	// one that lapsed, came late, or was ended. The number is zero if it is not known
	// any more: a late outcome under a fence that is not the current one. Both are zero of
	// an import of a key of which nothing was stored.
	Fence         int64
	AttemptNumber int
	// NewFence is the fence after the event; zero if it did not change.
	NewFence int64
	// Outcome is the late outcome (EventLateOutcome). Of one larger than MaxEvidenceBytes it
	// has only the code in Status, and BodyOmitted: so one key's evidence is at most 256 KiB.
	Outcome *Outcome
	// OutcomeDigest and OutcomeSize are of the late outcome as it was sent.
	OutcomeDigest OutcomeDigest
	OutcomeSize   int
	// Actor and Reason are given by whoever forced the action.
	Actor  string
	Reason string
}
