package store

import (
	"encoding/binary"
	"slices"
	"time"
)

// AddEvent returns the events to be kept of a key, oldest first: what was kept and e. An
// event that differs from a kept one only in its time is the same, sent again. Beyond
// [MaxEvents] the oldest of e's kind goes.
func AddEvent(kept []Event, e Event) []Event {
	same := func(k Event) bool {
		k.At, k.Outcome = e.At, e.Outcome // the digest tells outcomes apart
		return k == e
	}
	if slices.ContainsFunc(kept, same) {
		return kept
	}
	drop := EventToDrop(kept, func(k Event) EventKind { return k.Kind }, e.Kind)
	kept = append(slices.Clone(kept), e)
	if drop >= 0 {
		kept = slices.Delete(kept, drop, drop+1)
	}
	return kept
}

// EventToDrop returns the index of the kept event, or of what a backend keeps in its place,
// that goes when one of a kind is added; -1 if none has to. Kept is oldest first.
func EventToDrop[E any](kept []E, kindOf func(E) EventKind, added EventKind) int {
	oldest, ofKind := -1, 0
	for i, k := range kept {
		if kindOf(k) != added {
			continue
		}
		if ofKind == 0 {
			oldest = i
		}
		ofKind++
	}
	if ofKind < MaxEvents {
		return -1
	}
	return oldest
}

// evidence keeps an outcome that came too late to count. Which attempt a fence that is not
// current belonged to is not known any more; but one above the record's belonged to none.
func evidence(rec *Record, req CompleteRequest, now time.Time) Change {
	if rec == nil || req.Fence > rec.Fence {
		return Change{}
	}
	event := &Event{
		At: now, Kind: EventLateOutcome, Fence: req.Fence,
		Outcome: req.Outcome.asEvidence(), OutcomeDigest: req.Outcome.Digest(), OutcomeSize: req.Outcome.Size(),
	}
	if rec.holds(req.AttemptID, req.Fence) {
		event.AttemptNumber = rec.AttemptNumber
	}
	return Change{Event: event}
}

// asEvidence returns what is kept of an outcome that came too late: all of it, or, beyond
// MaxEvidenceBytes, only its code. What is kept of one does not depend on any other, so
// that nobody's evidence can be crowded out by the size of somebody else's.
func (o *Outcome) asEvidence() *Outcome {
	if o.Size() <= MaxEvidenceBytes {
		return o
	}
	return &Outcome{Status: codeOf(o.Status), BodyOmitted: true}
}

// codeOf cuts a serialized google.rpc.Status down to its code, field 1. Of one that cannot
// be read it is UNKNOWN.
func codeOf(status []byte) []byte {
	const codeTag = 1 << 3
	var code uint64
	for len(status) > 0 {
		tag, value, rest, ok := nextField(status)
		if !ok {
			return []byte{codeTag, 2}
		}
		if tag == codeTag {
			code = value
		}
		status = rest
	}
	if code == 0 {
		return nil // OK
	}
	return binary.AppendUvarint([]byte{codeTag}, code)
}

// nextField reads the first field of a protobuf message. Value is the number in it, if it is
// one of variable length.
func nextField(b []byte) (tag, value uint64, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, 0, nil, false
	}
	b = b[n:]
	var size uint64
	switch tag & 7 { // the type on the wire
	case 0, 2:
		if value, n = binary.Uvarint(b); n <= 0 {
			return 0, 0, nil, false
		}
		b = b[n:]
		if tag&7 == 2 {
			size = value
		}
	case 1:
		size = 8
	case 5:
		size = 4
	default:
		return 0, 0, nil, false
	}
	if size > uint64(len(b)) {
		return 0, 0, nil, false
	}
	return tag, value, b[size:], true
}
