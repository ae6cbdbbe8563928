package key

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// New draws the key of a new intent: a UUID of version 7 (RFC 9562), 36 characters. Make it
// once, when the intent is made, and keep it with the intent before the first try: a key that
// is made anew for a retry guards nothing. The time in it is this process's clock now, in
// milliseconds: when the intent was made, see [Time].
//
// The rest is 74 random bits. Keys that are made in one millisecond are in no order: the
// clock's time is not put forward to order them, as [Time] must not be ahead of the clock.
func New() string {
	var u [16]byte
	rand.Read(u[6:]) // never fails
	ms := time.Now().UnixMilli()
	binary.BigEndian.PutUint16(u[:], uint16(ms>>32))
	binary.BigEndian.PutUint32(u[2:], uint32(ms))
	u[6] = u[6]&0x0f | 0x70 // version 7
	u[8] = u[8]&0x3f | 0x80 // variant of the RFC
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Time is the time in a UUID of version 7, such as [New] makes: when the intent was made, by
// the clock of whoever made it. It is zero, which means not known, if id is anything else.
//
// client.IntentTime(key.Time(id)) has a repeat refused that comes after retention. Nothing
// does that by itself, since it takes the word of whoever made the key, and every UUID of version 7
// has a time in it, also one that was not drawn when the intent was made: of a clock that is
// ahead by more than the skew (a minute, or less), the claim is refused as invalid; of one
// that is behind, it expires sooner.
func Time(id string) time.Time {
	digits := strings.ReplaceAll(id, "-", "")
	u, err := hex.DecodeString(digits)
	if err != nil || len(u) != 16 || u[6]>>4 != 7 || u[8]>>6 != 2 || !hasHyphens(id) {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(u) >> 16))
}

func hasHyphens(id string) bool {
	return len(id) == 36 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-'
}

// Child derives the key for a step of an intent: the same whenever it is asked for, another
// one for another parent or step. parent must be unique by itself, like one of [New]. A
// key in idemd is not only its id: in a guarded handler, and in the function of client.Do, it
// is the Attempt's DownstreamKey that is another one for another customer's equal id.
//
// Name steps for what they are ("charge", "refund/2"), not for their place in the code. A step
// that is done once for each of several things has the thing's name in it.
func Child(parent, step string) string {
	if parent == "" {
		return ""
	}
	return derive("idemd.child.v1", parent, step)
}

// Attempt derives the key for the nth operation that serves one purpose, where each is an
// intent of its own: a card was declined, and the customer gives another one. n is kept with
// the purpose, and counts up only when the one before is known to have failed for good and
// somebody decides to try again. It is no counter of retries: those have the same key, and
// client.Attempt.Number must not be given here.
func Attempt(parent string, n int) string {
	if parent == "" {
		return ""
	}
	return derive("idemd.attempt.v1", parent, strconv.Itoa(n))
}

// Slot is the key for one run of a scheduled job: its name and the instant for which the run
// was scheduled, which the scheduler knows, never the clock at the start. Equal instants in
// different zones give one key. Choose job so that the key is a valid id, of at most 255
// bytes: that leaves 224 of them to the job.
func Slot(job string, scheduled time.Time) string {
	if job == "" || scheduled.IsZero() {
		return ""
	}
	t, layout := scheduled.UTC(), "2006-01-02T15:04Z"
	if !t.Equal(t.Truncate(time.Minute)) {
		layout = time.RFC3339Nano
	}
	return job + "@" + t.Format(layout)
}

// Event derives the key for handling an event: id is the one that its producer gave it, the
// same on every delivery, and source is within what ids are unique, such as a topic or the
// producer. A delivery's own number, an offset or a delivery tag, is not such an id: what was
// published twice has two of them.
func Event(source, id string) string {
	if id == "" {
		return ""
	}
	return derive("idemd.event.v1", source, id)
}

// Downstream derives the key for a step of an intent at another system from all four parts of
// the intent's key. It is what client.Attempt.DownstreamKey returns, for those who have no
// Attempt: whoever looks up afterwards what the other system was sent.
func Downstream(of store.Key, step string) string {
	if of.ID == "" {
		return ""
	}
	return derive("idemd.downstream.v1", of.Namespace, of.Scope, of.ID, of.Entity, step)
}

// derive is the one derivation. Each part comes with its length, so that no two lists of
// parts are one list of bytes, and a tag keeps the functions apart.
func derive(tag string, parts ...string) string {
	b := appendPart(nil, tag)
	for _, part := range parts {
		b = appendPart(b, part)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func appendPart(b []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...)
}
