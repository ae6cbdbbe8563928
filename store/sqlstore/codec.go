package sqlstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// row is a stored record with where it is and what happened to it. Its events are read only
// where they are needed: see [lookupColumns].
type row struct {
	bucket bucketID
	digest store.KeyDigest
	rec    *store.Record
	events []store.Event
}

// stateMoved is the state of a marker: a row that has moved to a later bucket, or that keeps
// its bucket from getting one. It is never an answer.
const stateMoved = 4

// recordColumns are the columns of a record, in the order of scanTargets and recordArgs.
// Events are apart, because few want them.
var recordColumns = []string{
	"digest", "key", "state", "fence", "previous_fence", "attempt", "attempt_number",
	"fp_version", "fp", "granted_at", "lease_end", "attempt_limit", "ended_at", "expires_at",
	"lapse_policy", "retention", "unsettled", "unsettled_since", "released_with", "ended", "outcome", "outcome_digest",
}

// rowColumns are recordColumns and the events.
var rowColumns = append(slices.Clone(recordColumns), "events")

// columns lists columns, of the table or alias if it is given.
func columns(names []string, of string) string {
	if of == "" {
		return strings.Join(names, ", ")
	}
	return of + "." + strings.Join(names, ", "+of+".")
}

// stored is a row as the database has it.
type stored struct {
	digest, key, attempt, fp, ended, outcome, outcomeDigest, events []byte

	state, lapsePolicy, releasedWith                            int16
	number                                                      int32
	fence, previousFence, fpVersion, grantedAt, leaseEnd, limit int64
	endedAt, expiresAt, unsettledSince                          *int64
	retention                                                   int64
	unsettled                                                   bool
}

// targets are where recordColumns are scanned to.
func (s *stored) targets() []any {
	return []any{
		&s.digest, &s.key, &s.state, &s.fence, &s.previousFence, &s.attempt, &s.number,
		&s.fpVersion, &s.fp, &s.grantedAt, &s.leaseEnd, &s.limit, &s.endedAt, &s.expiresAt,
		&s.lapsePolicy, &s.retention, &s.unsettled, &s.unsettledSince, &s.releasedWith, &s.ended, &s.outcome, &s.outcomeDigest,
	}
}

var errDamagedRow = errors.New("damaged row")

func damagedRow(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamagedRow, fmt.Sprintf(format, args...))
}

// record makes the record, and checks that it is one: that it is of this digest's key, and
// that its outcome is the one that was stored.
func (s *stored) record() (*store.Record, error) {
	key, err := store.DecodeKey(s.key)
	if err != nil {
		return nil, damagedRow("key: %v", err)
	}
	if digest := key.Digest(); string(digest[:]) != string(s.digest) {
		return nil, damagedRow("the key is not that of the digest %x", s.digest)
	}
	rec := &store.Record{
		Key: key, State: store.State(s.state), Fence: s.fence, PreviousFence: s.previousFence,
		AttemptID: string(s.attempt), AttemptNumber: int(s.number),
		Fingerprint: store.Fingerprint{Version: uint32(s.fpVersion), Digest: string(s.fp)},
		GrantedAt:   timeOf(s.grantedAt), LeaseEnd: timeOf(s.leaseEnd), AttemptLimit: timeOf(s.limit),
		EndedAt: optionalTime(s.endedAt), ExpiresAt: optionalTime(s.expiresAt),
		LapsePolicy: store.LapsePolicy(s.lapsePolicy), Retention: time.Duration(s.retention) * time.Microsecond,
		UnsettledSince: s.since(), ReleasedWith: store.Effect(s.releasedWith),
	}
	if rec.Ended, err = decodeEnded(s.ended); err != nil {
		return nil, err
	}
	if rec.Outcome, rec.OutcomeDigest, err = s.readOutcome(); err != nil {
		return nil, err
	}
	return rec, s.checkRanges()
}

// since is since when the record is unsettled. In an upgrade the older release, which knows only
// whether it is, writes beside this one: so that decides, and where it left no time there is none
// to know. A time that it left standing is of the row's past, so that it is too early at worst.
func (s *stored) since() time.Time {
	switch {
	case !s.unsettled:
		return time.Time{}
	case s.unsettledSince == nil:
		return store.LongAgo
	}
	return timeOf(*s.unsettledSince)
}

func (s *stored) readOutcome() (*store.Outcome, store.OutcomeDigest, error) {
	var none store.OutcomeDigest
	if completed := s.state == int16(store.StateCompleted); completed != (s.outcomeDigest != nil) {
		return nil, none, damagedRow("an outcome goes with the state COMPLETED only")
	}
	if s.outcomeDigest == nil {
		return nil, none, nil
	}
	var m pb.Outcome
	if err := proto.Unmarshal(s.outcome, &m); err != nil {
		return nil, none, damagedRow("outcome: %v", err)
	}
	outcome := storepb.OutcomeFromProto(&m)
	digest := outcome.Digest()
	if string(digest[:]) != string(s.outcomeDigest) {
		return nil, none, damagedRow("the outcome is not the one that was stored")
	}
	return outcome, digest, nil
}

func (s *stored) checkRanges() error {
	switch {
	case s.state < int16(store.StateInProgress) || s.state > int16(store.StateReleased):
		return damagedRow("state %d", s.state)
	case s.lapsePolicy != int16(store.Takeover) && s.lapsePolicy != int16(store.Hold):
		return damagedRow("lapse policy %d", s.lapsePolicy)
	case s.releasedWith < 0 || s.releasedWith > int16(store.EffectUnknown):
		return damagedRow("released with %d", s.releasedWith)
	case s.fence <= 0 || s.retention <= 0 || s.number < 1:
		return damagedRow("fence %d, retention %d µs, attempt number %d", s.fence, s.retention, s.number)
	}
	return nil
}

func optionalTime(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return timeOf(*us)
}

func optionalUS(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	v := t.UnixMicro()
	return &v
}

// args are the values of rowColumns.
func (r *row) args() ([]any, error) {
	rec := r.rec
	outcome, digest, err := outcomeArgs(rec.Outcome, rec.OutcomeDigest)
	if err != nil {
		return nil, err
	}
	events, err := encodeEvents(r.events)
	if err != nil {
		return nil, err
	}
	return []any{
		r.digest[:], rec.Key.AppendEncoded(nil), int16(rec.State), rec.Fence, rec.PreviousFence, []byte(rec.AttemptID), int32(rec.AttemptNumber),
		int64(rec.Fingerprint.Version), []byte(rec.Fingerprint.Digest), rec.GrantedAt.UnixMicro(), rec.LeaseEnd.UnixMicro(), rec.AttemptLimit.UnixMicro(),
		optionalUS(rec.EndedAt), optionalUS(rec.ExpiresAt), int16(rec.LapsePolicy), rec.Retention.Microseconds(),
		rec.Unsettled(), optionalUS(rec.UnsettledSince), int16(rec.ReleasedWith), encodeEnded(rec.Ended), outcome, digest, events,
	}, nil
}

func outcomeArgs(o *store.Outcome, d store.OutcomeDigest) (outcome, digest []byte, err error) {
	if o == nil {
		return nil, nil, nil
	}
	if outcome, err = proto.Marshal(storepb.OutcomeToProto(o)); err != nil {
		return nil, nil, fmt.Errorf("encode outcome: %w", err)
	}
	if outcome == nil {
		outcome = []byte{} // not NULL
	}
	return outcome, d[:], nil
}

// encodeEnded writes attempt ids, each as its length in a byte and its bytes.
func encodeEnded(ids []string) []byte {
	b := []byte{}
	for _, id := range ids {
		b = binary.AppendUvarint(b, uint64(len(id)))
		b = append(b, id...)
	}
	return b
}

func decodeEnded(b []byte) (ids []string, err error) {
	for len(b) > 0 {
		n, width := binary.Uvarint(b)
		if width <= 0 || n > uint64(len(b)-width) {
			return nil, damagedRow("the ended attempts are cut short")
		}
		ids = append(ids, string(b[width:width+int(n)]))
		b = b[width+int(n):]
	}
	return ids, nil
}

// encodeEvents writes events, oldest first; nil if there are none.
func encodeEvents(events []store.Event) ([]byte, error) {
	if len(events) == 0 {
		return nil, nil
	}
	var m pb.InspectRecordResponse
	for _, e := range events {
		m.Events = append(m.Events, storepb.EventToProto(e))
	}
	b, err := proto.Marshal(&m)
	if err != nil {
		return nil, fmt.Errorf("encode events: %w", err)
	}
	return b, nil
}

func decodeEvents(b []byte) ([]store.Event, error) {
	var m pb.InspectRecordResponse
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, damagedRow("events: %v", err)
	}
	var events []store.Event
	for _, e := range m.Events {
		event, err := storepb.EventFromProto(e)
		if err != nil {
			return nil, damagedRow("events: %v", err)
		}
		events = append(events, event)
	}
	return events, nil
}
