package storetest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// goldenReasons are the refusals that the table and the checks before it can give.
var goldenReasons = map[string]error{
	"INVALID_ARGUMENT":     store.ErrInvalidArgument,
	"KEY_REQUIRED":         store.ErrKeyRequired,
	"OUTCOME_TOO_LARGE":    store.ErrOutcomeTooLarge,
	"NAMESPACE_UNKNOWN":    store.ErrNamespaceUnknown,
	"FINGERPRINT_MISMATCH": store.ErrFingerprintMismatch,
	"KEY_EXPIRED":          store.ErrKeyExpired,
	"UNKNOWN_HISTORY":      store.ErrUnknownHistory,
	"ATTEMPT_TOO_LONG":     store.ErrAttemptTooLong,
	"KEY_NOT_FOUND":        store.ErrKeyNotFound,
	"STALE_FENCE":          store.ErrStaleFence,
	"STALE_ATTEMPT":        store.ErrStaleAttempt,
	"LEASE_EXPIRED":        store.ErrLeaseExpired,
	"ALREADY_COMPLETED":    store.ErrAlreadyCompleted,
	"NOT_LAPSED":           store.ErrNotLapsed,
	"NOT_HELD":             store.ErrNotHeld,
	"NO_FLOOR":             store.ErrNoFloor,
	"NOT_CONFIRMED":        store.ErrNotConfirmed,
	"WRONG_REGION":         store.ErrWrongRegion,
	"NAMESPACE_MOVING":     store.ErrNamespaceMoving,
}

// reasonOf names a refusal. One that unwraps to several sentinels, or is not a
// [*store.Error], names no reason and so matches no script.
func reasonOf(err error) string {
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(goldenReasons)) {
		if errors.Is(err, goldenReasons[name]) {
			reasons = append(reasons, name)
		}
	}
	var refusal *store.Error
	if len(reasons) != 1 || !errors.As(err, &refusal) {
		return fmt.Sprintf("error of no reason %v: %v", reasons, err)
	}
	if errors.Is(err, store.ErrNamespaceMoving) && refusal.RetryAfter <= 0 {
		return "error without a hint when to ask again: " + reasons[0]
	}
	return reasons[0]
}

func isReason(answer string) bool {
	return goldenReasons[answer] != nil || strings.HasPrefix(answer, "error")
}

// goldenLine collects the parts of a line that are not zero.
type goldenLine []string

func (l *goldenLine) word(word string, when bool) {
	if when {
		*l = append(*l, word)
	}
}

func (l *goldenLine) add(name string, value any) {
	if !reflect.ValueOf(value).IsZero() {
		*l = append(*l, fmt.Sprintf("%s=%v", name, value))
	}
}

func (l goldenLine) String() string { return strings.Join(l, " ") }

func (r *goldenRun) claimText(answer store.ClaimAnswer) string {
	r.t.Helper()
	var line goldenLine
	if g := answer.Granted; g != nil {
		line.word("granted", true)
		line.add("fence", r.fenceText(g.Fence))
		line.add("number", g.AttemptNumber)
		line.add("previous", r.fenceText(g.PreviousFence))
		line.word("unsettled", g.Unsettled)
		line.add("since", r.timeText(g.UnsettledSince))
		line.add("granted", r.timeText(g.GrantedAt))
		r.lease(&line, g.LeaseExpiresAt, g.LeaseRemaining)
	}
	if p := answer.InProgress; p != nil {
		line.word("in-progress", true)
		r.lease(&line, p.LeaseExpiresAt, p.LeaseRemaining)
		line.word("without retry hint", p.RetryAfter <= 0)
	}
	if c := answer.Completed; c != nil {
		line.word("completed", true)
		line.add("outcome", r.outcomeText(c.Outcome))
		line.add("fence", r.fenceText(c.Fence))
		line.add("completed", r.timeText(c.CompletedAt))
		line.add("expires", r.timeText(c.ExpiresAt))
		line.add("age", durationText(c.Age))
		line.add("retention", durationText(c.Retention))
	}
	if u := answer.Unresolved; u != nil {
		line.word("unresolved", true)
		line.add("fence", r.fenceText(u.Fence))
		line.add("lapsed", r.timeText(u.LapsedAt))
	}
	line.word("incomparable", answer.FingerprintIncomparable)
	return line.String()
}

func (r *goldenRun) renewText(answer store.RenewAnswer) string {
	line := goldenLine{"renewed"}
	r.lease(&line, answer.LeaseExpiresAt, answer.LeaseRemaining)
	return line.String()
}

func (r *goldenRun) lease(line *goldenLine, end time.Time, remaining time.Duration) {
	line.add("lease-end", r.timeText(end))
	line.add("remaining", durationText(remaining))
}

func (r *goldenRun) completeText(answer store.CompleteAnswer) string {
	line := goldenLine{"ok"}
	line.add("completed", r.timeText(answer.CompletedAt))
	line.add("expires", r.timeText(answer.ExpiresAt))
	return line.String()
}

func importText(answer store.ImportAnswer) string { return importReply(answer, nil).Kind }

func releaseText(answer store.ReleaseAnswer) string {
	return "ok " + nameOf(goldenStates, answer.State)
}

func (r *goldenRun) lookupText(answer store.LookupAnswer) string {
	line := goldenLine{nameOf(goldenStates, answer.State)}
	line.word("lapsed", answer.Lapsed)
	line.word("unsettled", answer.Unsettled)
	line.add("policy", nameOf(goldenPolicies, answer.LapsePolicy))
	line.add("fence", r.fenceText(answer.Fence))
	line.add("number", answer.AttemptNumber)
	line.add("granted", r.timeText(answer.GrantedAt))
	line.add("lease-end", r.timeText(answer.LeaseExpiresAt))
	line.add("ended", r.timeText(answer.EndedAt))
	line.add("expires", r.expiresText(answer.ExpiresAt))
	line.add("outcome", r.outcomeText(answer.Outcome))
	line.word("outcome-withheld", answer.OutcomeWithheld)
	return line.String()
}

// recordText shows all of a record but the attempt ids, which do not cross the wire.
func (r *goldenRun) recordText(record *store.Record) string {
	if record == nil {
		return "none"
	}
	line := goldenLine{nameOf(goldenStates, record.State)}
	line.add("fence", r.fenceText(record.Fence))
	line.add("number", record.AttemptNumber)
	line.add("previous", r.fenceText(record.PreviousFence))
	line.word("unsettled", record.Unsettled())
	line.add("since", r.timeText(record.UnsettledSince))
	line.add("released", nameOf(goldenEffects, record.ReleasedWith))
	line.add("past", len(record.Ended))
	line.add("fp", fingerprintText(record.Fingerprint))
	line.add("granted", r.timeText(record.GrantedAt))
	line.add("lease-end", r.timeText(record.LeaseEnd))
	line.add("limit", r.timeText(record.AttemptLimit))
	line.add("ended", r.timeText(record.EndedAt))
	line.add("expires", r.expiresText(record.ExpiresAt))
	line.add("policy", nameOf(goldenPolicies, record.LapsePolicy))
	line.add("retention", durationText(record.Retention))
	line.add("outcome", r.outcomeText(record.Outcome))
	var digest store.OutcomeDigest
	if record.Outcome != nil {
		digest = record.Outcome.Digest()
	}
	line.word("with a wrong outcome digest", record.OutcomeDigest != digest)
	return line.String()
}

// wholeRecordText shows the attempt ids too, as far as the store tells them.
func (r *goldenRun) wholeRecordText(record *store.Record) string {
	if record == nil {
		return "none"
	}
	return fmt.Sprintf("%s attempt=%q ended-attempts=%q", r.recordText(record), record.AttemptID, record.Ended)
}

func (r *goldenRun) eventTexts(events []store.Event) []string {
	var texts []string
	for _, event := range events {
		texts = append(texts, "event "+r.eventText(event))
	}
	return texts
}

func (r *goldenRun) eventText(event store.Event) string {
	line := goldenLine{nameOf(goldenEventKinds, event.Kind)}
	line.add("at", r.timeText(event.At))
	line.add("fence", r.fenceText(event.Fence))
	line.add("number", event.AttemptNumber)
	line.add("new-fence", r.fenceText(event.NewFence))
	line.add("outcome", r.outcomeText(event.Outcome))
	line.add("of", r.sentText(event))
	line.add("actor", event.Actor)
	line.add("reason", event.Reason)
	return line.String()
}

// sentText is the name of the late outcome that was sent, if not all of it was kept.
func (r *goldenRun) sentText(event store.Event) string {
	for name, known := range r.set.outcomes {
		if event.OutcomeDigest == known.Digest() && event.OutcomeSize == known.Size() {
			if event.Outcome != nil && equalOutcomes(event.Outcome, known) {
				return ""
			}
			return name
		}
	}
	if event.OutcomeDigest == (store.OutcomeDigest{}) && event.OutcomeSize == 0 && event.Outcome == nil {
		return ""
	}
	return fmt.Sprintf("%d bytes with digest %x", event.OutcomeSize, event.OutcomeDigest)
}

// outcomeText is the name of an outcome of the scripts that is equal byte for byte.
func (r *goldenRun) outcomeText(outcome *store.Outcome) string {
	if outcome == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(r.set.outcomes)) {
		if known := r.set.outcomes[name]; outcome.Digest() == known.Digest() && equalOutcomes(outcome, known) {
			return name
		}
	}
	return fmt.Sprintf("%+v", *outcome)
}

// equalOutcomes compares without the digest, so that a wrong digest cannot hide a difference.
func equalOutcomes(a, b *store.Outcome) bool {
	show := func(o *store.Outcome) string {
		return fmt.Sprintf("%q %q %q %t %q %q", o.Status, o.Body, o.BodyType, o.BodyOmitted, o.Header, o.Trailer)
	}
	return show(a) == show(b)
}

func fingerprintText(fp store.Fingerprint) string {
	if fp == (store.Fingerprint{}) {
		return "-"
	}
	return fmt.Sprintf("%d:%s", fp.Version, fp.Digest)
}

// timeText shows an instant as its distance from the start of the case.
func (r *goldenRun) timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return offsetText(at.Sub(r.base))
}

func (r *goldenRun) expiresText(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return r.timeText(at)
}

// fenceText shows a fence as the distance of its microseconds from the start of the case.
func (r *goldenRun) fenceText(fence int64) string {
	if fence == 0 {
		return ""
	}
	return offsetText(time.UnixMicro(fence).Sub(r.base))
}

func offsetText(d time.Duration) string {
	if d < 0 {
		return "-" + durationText(-d)
	}
	return "+" + durationText(d)
}

// durationText is like d.String, without parts that are zero and always in hours,
// minutes and seconds.
func durationText(d time.Duration) string {
	if d < 0 {
		return "-" + durationText(-d)
	}
	var b strings.Builder
	if h := d / time.Hour; h > 0 {
		fmt.Fprintf(&b, "%dh", h)
	}
	if m := d % time.Hour / time.Minute; m > 0 {
		fmt.Fprintf(&b, "%dm", m)
	}
	if s := d % time.Minute; s > 0 || b.Len() == 0 {
		seconds := fmt.Sprintf("%d.%09d", s/time.Second, s%time.Second)
		b.WriteString(strings.TrimSuffix(strings.TrimRight(seconds, "0"), ".") + "s")
	}
	return b.String()
}

func nameOf[T comparable](names map[string]T, value T) string {
	for name, v := range names {
		if v == value {
			return name
		}
	}
	var zero T
	if value == zero {
		return ""
	}
	return fmt.Sprintf("%v?", value)
}
