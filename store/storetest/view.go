package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// instant is a time in nanoseconds since 1970; zero means none. What is compared is
// compared as instants, so that neither time zones nor a way over the wire matter.
type instant int64

func at(t time.Time) instant {
	if t.IsZero() {
		return 0
	}
	return instant(t.UnixNano())
}

func (i instant) add(d time.Duration) instant         { return i + instant(d) }
func (i instant) since(earlier instant) time.Duration { return time.Duration(i - earlier) }
func (i instant) micros() int64                       { return int64(i) / int64(time.Microsecond) }

func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}

// String shows the distance from [Start].
func (i instant) String() string {
	if i == 0 {
		return "none"
	}
	return "start+" + i.since(at(Start)).String()
}

// reply is what any operation gets, flat and comparable with ==. Kind says which fields
// mean something. HeldFor is left out: it is real time, not the store's.
type reply struct {
	Kind    string
	Refusal error // one of the sentinels

	Fence, Previous     int64
	Number              int
	State               store.State
	Policy              store.LapsePolicy
	Lapsed, Unsettled   bool
	UnsettledSince      instant // of a grant
	GrantedAt, LeaseEnd instant
	EndedAt, ExpiresAt  instant
	Remaining, Age      time.Duration
	Retention           time.Duration
	RetryLater          bool // a retry hint that makes sense was given
	Unchecked           bool // FingerprintIncomparable
	Outcome             string
	Withheld            bool
	Record              recordView
	Events              string
	Now                 instant
}

// recordView is a [store.Record] that can be compared with ==.
type recordView struct {
	Key                 store.Key
	State               store.State
	Fence, Previous     int64
	Attempt             string
	Number              int
	Fingerprint         store.Fingerprint
	GrantedAt, LeaseEnd instant
	Limit               instant
	EndedAt, ExpiresAt  instant
	Policy              store.LapsePolicy
	Retention           time.Duration
	UnsettledSince      instant
	Released            store.Effect
	Ended               string
	EndedCount          int
	Outcome             string
	Digest              store.OutcomeDigest
}

func refused(sentinel error) reply { return reply{Kind: "refused", Refusal: sentinel} }

// sentinels lists every refusal that package store knows.
var sentinels = []error{
	store.ErrInvalidArgument, store.ErrKeyRequired, store.ErrOutcomeTooLarge, store.ErrNamespaceUnknown,
	store.ErrNamespaceExists, store.ErrNamespaceChanged, store.ErrUnauthenticated, store.ErrPermissionDenied, store.ErrFingerprintMismatch, store.ErrKeyExpired, store.ErrUnknownHistory,
	store.ErrAttemptTooLong, store.ErrWrongRegion, store.ErrKeyNotFound, store.ErrStaleFence,
	store.ErrStaleAttempt, store.ErrLeaseExpired, store.ErrAlreadyCompleted, store.ErrNotLapsed,
	store.ErrNotHeld, store.ErrNoFloor, store.ErrNotConfirmed, store.ErrNoHome, store.ErrUnavailable, store.ErrHomeUnreachable, store.ErrNamespaceMoving, store.ErrOverloaded, store.ErrQuota,
	store.ErrRecordCorrupt, store.ErrInternal,
}

// refusalOf finds the sentinel in err. An error that breaks the contract comes back
// itself, so that it equals no sentinel.
func refusalOf(err error) reply {
	var contract *store.Error
	if !errors.As(err, &contract) {
		return refused(fmt.Errorf("not a *store.Error: %w", err))
	}
	for _, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			return refused(sentinel)
		}
	}
	return refused(fmt.Errorf("wraps no sentinel: %w", err))
}

func claimReply(a store.ClaimAnswer, err error) reply {
	if err != nil {
		return refusalOf(err)
	}
	var replies []reply
	if g := a.Granted; g != nil {
		replies = append(replies, reply{Kind: "granted", Fence: g.Fence, Previous: g.PreviousFence, Number: g.AttemptNumber,
			Unsettled: g.Unsettled, UnsettledSince: at(g.UnsettledSince), GrantedAt: at(g.GrantedAt), LeaseEnd: at(g.LeaseExpiresAt), Remaining: g.LeaseRemaining})
	}
	if p := a.InProgress; p != nil {
		hint := p.RetryAfter > 0 && p.RetryAfter <= max(p.LeaseRemaining, time.Second)
		replies = append(replies, reply{Kind: "in progress", LeaseEnd: at(p.LeaseExpiresAt), Remaining: p.LeaseRemaining, RetryLater: hint})
	}
	if c := a.Completed; c != nil {
		replies = append(replies, reply{Kind: "completed", Outcome: outcomeText(c.Outcome), Fence: c.Fence, EndedAt: at(c.CompletedAt),
			ExpiresAt: at(c.ExpiresAt), Age: c.Age, Retention: c.Retention})
	}
	if u := a.Unresolved; u != nil {
		replies = append(replies, reply{Kind: "unresolved", Fence: u.Fence, LeaseEnd: at(u.LapsedAt)})
	}
	if len(replies) != 1 {
		return reply{Kind: fmt.Sprintf("broken: %d answers to one Claim", len(replies))}
	}
	replies[0].Unchecked = a.FingerprintIncomparable
	return replies[0]
}

func renewReply(a store.RenewAnswer, err error) reply {
	if err != nil {
		return refusalOf(err)
	}
	return reply{Kind: "renewed", LeaseEnd: at(a.LeaseExpiresAt), Remaining: a.LeaseRemaining}
}

func completeReply(a store.CompleteAnswer, err error) reply {
	if err != nil {
		return refusalOf(err)
	}
	return reply{Kind: "recorded", EndedAt: at(a.CompletedAt), ExpiresAt: at(a.ExpiresAt)}
}

func releaseReply(a store.ReleaseAnswer, err error) reply {
	if err != nil {
		return refusalOf(err)
	}
	return reply{Kind: "released", State: a.State}
}

func lookupReply(a store.LookupAnswer, err error) reply {
	if err != nil {
		return refusalOf(err)
	}
	return reply{Kind: "found", State: a.State, Lapsed: a.Lapsed, Unsettled: a.Unsettled, Policy: a.LapsePolicy, Fence: a.Fence,
		Number: a.AttemptNumber, GrantedAt: at(a.GrantedAt), LeaseEnd: at(a.LeaseExpiresAt), EndedAt: at(a.EndedAt),
		ExpiresAt: at(a.ExpiresAt), Outcome: outcomeText(a.Outcome), Withheld: a.OutcomeWithheld}
}

func recordReply(r *store.Record, err error) reply {
	switch {
	case err != nil:
		return refusalOf(err)
	case r == nil:
		return reply{Kind: "broken: no record and no error"}
	}
	return reply{Kind: "changed", Record: viewRecord(r)}
}

func importReply(a store.ImportAnswer, err error) reply {
	switch {
	case err != nil:
		return refusalOf(err)
	case a.Record == nil || a.Imported && a.Same:
		return reply{Kind: "broken: no record, or both imported and known"}
	case a.Imported:
		return reply{Kind: "imported", Record: viewRecord(a.Record)}
	case a.Same:
		return reply{Kind: "known as that", Record: viewRecord(a.Record)}
	}
	return reply{Kind: "known otherwise", Record: viewRecord(a.Record)}
}

func inspectReply(i store.Inspection, err error) reply {
	switch {
	case err != nil:
		return refusalOf(err)
	case i.Record == nil:
		return reply{Kind: "broken: no record and no error"}
	}
	events := make([]event, len(i.Events))
	for n, e := range i.Events {
		events[n] = event{At: at(e.At), Kind: e.Kind, Fence: e.Fence, Number: e.AttemptNumber, NewFence: e.NewFence,
			Outcome: outcomeText(e.Outcome), Digest: e.OutcomeDigest, Size: e.OutcomeSize, Actor: e.Actor, Reason: e.Reason}
	}
	return reply{Kind: "inspected", Record: viewRecord(i.Record), Events: eventsText(events), Now: at(i.Now)}
}

func viewRecord(r *store.Record) recordView {
	return recordView{Key: r.Key, State: r.State, Fence: r.Fence, Previous: r.PreviousFence, Attempt: r.AttemptID,
		Number: r.AttemptNumber, Fingerprint: r.Fingerprint, GrantedAt: at(r.GrantedAt), LeaseEnd: at(r.LeaseEnd),
		Limit: at(r.AttemptLimit), EndedAt: at(r.EndedAt), ExpiresAt: at(r.ExpiresAt), Policy: r.LapsePolicy,
		Retention: r.Retention, UnsettledSince: at(r.UnsettledSince), Released: r.ReleasedWith, Ended: fmt.Sprintf("%q", r.Ended), EndedCount: len(r.Ended),
		Outcome: outcomeText(r.Outcome), Digest: r.OutcomeDigest}
}

// view is what [viewRecord] must make of the backend's record.
func (e *entry) view(key store.Key) recordView {
	v := recordView{Key: key, State: e.state, Fence: e.fence, Previous: e.previous, Attempt: e.attempt,
		Number: e.number, Fingerprint: e.fingerprint, GrantedAt: e.granted, LeaseEnd: e.leaseEnd,
		Limit: e.limit, EndedAt: e.ended, ExpiresAt: e.expires, Policy: policyOf(e.hold),
		Retention: e.retention, UnsettledSince: e.unsettledSince, Released: e.released, Ended: fmt.Sprintf("%q", e.endedAttempts), EndedCount: len(e.endedAttempts),
		Outcome: outcomeText(e.outcome)}
	if e.outcome != nil {
		v.Digest = outcomeDigest(e.outcome)
	}
	return v
}

func (e *entry) changed(key store.Key) reply {
	return reply{Kind: "changed", Record: e.view(key)}
}

func (e *entry) inspected(key store.Key, now instant) reply {
	return reply{Kind: "inspected", Record: e.view(key), Events: eventsText(e.events), Now: now}
}

// withoutAttempts is r as a backend shows it that hides attempt ids.
func (r reply) withoutAttempts() reply {
	r.Record = r.Record.withoutAttempts()
	return r
}

// withoutAttempts leaves how many attempts ended.
func (v recordView) withoutAttempts() recordView {
	v.Attempt, v.Ended = "", ""
	return v
}

func eventsText(events []event) string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = fmt.Sprintf("%+v", e)
	}
	return strings.Join(lines, "\n")
}

// outcomeText writes an outcome so that two texts are equal only if the outcomes are,
// nil and empty byte slices being the same. It is empty for no outcome.
func outcomeText(o *store.Outcome) string {
	if o == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "status %q, %q body %q, omitted %t", o.Status, o.BodyType, o.Body, o.BodyOmitted)
	for _, e := range o.Header {
		fmt.Fprintf(&b, ", header %q %q", e.Name, e.Value)
	}
	for _, e := range o.Trailer {
		fmt.Fprintf(&b, ", trailer %q %q", e.Name, e.Value)
	}
	return b.String()
}

// difference names the fields in which two structs of one type differ; empty if none.
func difference(want, got any) string {
	var b strings.Builder
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		x, y := w.Field(i).Interface(), g.Field(i).Interface()
		switch {
		case x == y:
		case w.Field(i).Kind() == reflect.Struct && w.Field(i).Type() == reflect.TypeFor[recordView]():
			b.WriteString(difference(x, y))
		default:
			fmt.Fprintf(&b, "\n  %s: want %v, got %v", w.Type().Field(i).Name, shorten(x), shorten(y))
		}
	}
	return b.String()
}

// shorten keeps a message about large outcomes readable.
func shorten(v any) string {
	text := fmt.Sprintf("%+v", v)
	if len(text) > 1000 {
		return fmt.Sprintf("%s… (%d bytes)", text[:1000], len(text))
	}
	return text
}
