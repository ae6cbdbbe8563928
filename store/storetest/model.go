package storetest

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// model is the table of states and operations written a second time, from its text
// alone and without the types and functions that decide in package store. It applies
// one operation after another to a map. Where it and a backend differ, one of the two
// misreads the table.
//
// It keeps expired entries for ever: whether a store still has them changes nothing but
// the next fence, and that has long been below the clock when retention has ended.
type model struct {
	now     instant
	ahead   time.Duration // the wall clock is that far ahead of now
	spaces  map[string]space
	entries map[store.Key]*entry
	late    bool // the operation being decided leaves evidence
}

// space is the policy of a namespace.
type space struct {
	hold       bool
	retention  time.Duration
	longest    time.Duration // retention of the tier
	lease      time.Duration
	maxLease   time.Duration
	maxAttempt time.Duration
	maxOutcome int
	floor      instant
	past       []pastRetention
	placed     store.Placement
}

type pastRetention struct {
	retention time.Duration
	until     instant
}

// entry is what is known about one key.
type entry struct {
	state          store.State
	fence          int64
	previous       int64
	attempt        string // empty: an operator ended it
	number         int
	fingerprint    store.Fingerprint
	granted        instant
	unsettledSince instant // zero: no earlier attempt may have acted
	leaseEnd       instant
	limit          instant
	ended          instant
	expires        instant // zero: never
	hold           bool
	retention      time.Duration
	released       store.Effect
	endedAttempts  []string
	outcome        *store.Outcome
	events         []event
}

// event is an [store.Event] that can be compared with ==.
type event struct {
	At       instant
	Kind     store.EventKind
	Fence    int64
	Number   int
	NewFence int64
	Outcome  string
	Digest   store.OutcomeDigest // of the late outcome as it was sent, as is Size
	Size     int
	Actor    string
	Reason   string
}

const (
	modelEndedAttempts = 8
	modelAhead         = 35 * 24 * time.Hour
	modelEvents        = 32 // of each kind
	modelEvidence      = 8 << 10
	modelOutcome       = 256 << 10
)

func newModel(now instant) *model {
	return &model{now: now, spaces: map[string]space{}, entries: map[store.Key]*entry{}}
}

func (m *model) clone() *model {
	c := &model{now: m.now, ahead: m.ahead, spaces: m.spaces, entries: maps.Clone(m.entries)}
	for key, e := range c.entries {
		c.entries[key] = e.clone()
	}
	return c
}

func (e *entry) clone() *entry {
	if e == nil { // there is none
		return nil
	}
	copied := *e
	copied.endedAttempts = slices.Clone(e.endedAttempts)
	copied.events = slices.Clone(e.events)
	return &copied
}

// forget removes all that is known of a namespace's keys; carry puts what was live back.
func (m *model) forget(namespace string) {
	maps.DeleteFunc(m.entries, func(key store.Key, _ *entry) bool { return key.Namespace == namespace })
}

func (m *model) carry(namespace string) {
	kept := map[store.Key]*entry{}
	for key := range m.entries {
		if e := m.live(key); e != nil && key.Namespace == namespace {
			kept[key] = e
		}
	}
	m.forget(namespace)
	maps.Copy(m.entries, kept)
}

// apply is the whole table: it changes the model and says what must be answered.
func (m *model) apply(o call) reply {
	if refusal := staticFault(o); refusal != nil {
		return refused(refusal)
	}
	ns, ok := m.spaces[o.Key.Namespace]
	if !ok {
		return refused(store.ErrNamespaceUnknown)
	}
	if o.Kind != opInspect && o.Epoch != ns.placed.Epoch {
		return refused(store.ErrWrongRegion)
	}
	if refusal := m.namespaceFault(ns, o); refusal != nil {
		return refused(refusal)
	}
	if ns.placed.Move.Phase == store.MoveSealed && o.Kind != opInspect {
		if e := m.live(o.Key); e == nil || e.state != store.StateCompleted {
			return refused(store.ErrNamespaceMoving)
		}
	}
	if !ns.stops(o.Kind) {
		return m.decide(ns, o)
	}
	before := m.entries[o.Key].clone()
	m.late = false
	answer := m.decide(ns, o)
	if !m.counts(o, answer, before) {
		return answer
	}
	if before == nil {
		delete(m.entries, o.Key)
	} else {
		m.entries[o.Key] = before
	}
	return refused(store.ErrNamespaceMoving)
}

// stops says that the namespace is on a step of its move at which the operation may change
// nothing; counts, what is a change.
func (ns space) stops(kind opKind) bool {
	phase := ns.placed.Move.Phase
	return phase == store.MoveSealed || phase == store.MoveFrozen && kind == opClaim
}

func (m *model) counts(o call, answer reply, before *entry) bool {
	renewed := o.Kind == opRenew && answer.Refusal == nil
	return m.late || renewed || !reflect.DeepEqual(before, m.entries[o.Key])
}

// decide is the table without regions.
func (m *model) decide(ns space, o call) reply {
	if o.Kind == opClaim {
		return m.claim(ns, o)
	}
	if o.Kind == opImport {
		return m.importOutcome(ns, o)
	}
	e := m.live(o.Key)
	if e == nil {
		return refused(store.ErrKeyNotFound)
	}
	switch o.Kind {
	case opLookup:
		return m.lookup(ns, e, o)
	case opInspect:
		return e.inspected(o.Key, m.now)
	case opResolve:
		return m.resolve(e, o)
	case opForce:
		return m.force(e, o)
	}
	if e.attempt == "" || o.Fence != e.fence || o.AttemptID != e.attempt {
		if o.Kind == opComplete {
			m.evidence(e, o)
		}
		return refused(store.ErrStaleFence)
	}
	switch o.Kind {
	case opRenew:
		return m.renew(ns, e, o)
	case opComplete:
		return m.complete(e, o)
	case opRelease:
		return m.release(e, o)
	}
	return refused(errors.New("the model does not know " + string(o.Kind)))
}

// staticFault and namespaceFault are row 1 as far as random operations break it.
func staticFault(o call) error {
	switch {
	case o.Key.ID == "":
		return store.ErrKeyRequired
	case o.named() && o.AttemptID == "",
		o.Fingerprint.Digest == "" && o.Fingerprint.Version != 0,
		o.Lease != 0 && (o.Lease < time.Second || o.Lease > 15*time.Minute),
		o.fenced() && o.Fence <= 0,
		o.Kind == opRelease && o.Effect == 0,
		(o.Kind == opResolve || o.Kind == opForce || o.Kind == opImport) && (o.Reason == "" || o.Fence < 0),
		o.Kind == opImport && o.Outcome == nil && o.Done != 0:
		return store.ErrInvalidArgument
	case o.Outcome != nil && outcomeBytes(o.Outcome) > modelOutcome:
		return store.ErrOutcomeTooLarge
	}
	return nil
}

func (m *model) namespaceFault(ns space, o call) error {
	switch {
	case o.Intent != 0 && o.Intent > m.now.add(min(max(m.ahead, 0), modelAhead)+ns.skew()), o.Lease > ns.maxLease:
		return store.ErrInvalidArgument
	case o.Outcome != nil && outcomeBytes(o.Outcome) > ns.maxOutcome:
		return store.ErrOutcomeTooLarge
	}
	return nil
}

// claim is rows 2 to 10.
func (m *model) claim(ns space, o call) reply {
	e := m.live(o.Key)
	if e == nil {
		return m.claimNew(ns, o)
	}
	comparison := compareFingerprints(o.Fingerprint, e.fingerprint)
	switch {
	case slices.Contains(e.endedAttempts, o.AttemptID):
		return refused(store.ErrStaleAttempt)
	case e.state == store.StateReleased:
		if ns.forgets(e.known(), o.Intent) {
			return refused(store.ErrUnknownHistory)
		}
		e.fingerprint = o.Fingerprint
		m.grant(ns, e, o, 0)
		return m.grantedReply(e, false)
	case comparison == fingerprintsDiffer:
		return refused(store.ErrFingerprintMismatch)
	}
	unchecked := comparison == fingerprintsUnchecked
	switch {
	case e.state == store.StateCompleted:
		return reply{Kind: "completed", Outcome: outcomeText(e.outcome), Fence: e.fence, EndedAt: e.ended, ExpiresAt: e.expires,
			Age: m.now.since(e.ended), Retention: e.retention, Unchecked: unchecked}
	case e.attempt == o.AttemptID:
		return m.claimAgain(ns, e, o, unchecked)
	case !m.lapsed(e):
		return reply{Kind: "in progress", LeaseEnd: e.leaseEnd, Remaining: e.leaseEnd.since(m.now), RetryLater: true, Unchecked: unchecked}
	case e.hold:
		return reply{Kind: "unresolved", Fence: e.fence, LeaseEnd: e.leaseEnd, Unchecked: unchecked}
	case m.mayBeLeased(ns, e):
		return m.leased(ns, unchecked)
	}
	fence, number := e.fence, e.number
	e.end(e.attempt)
	m.grant(ns, e, o, e.firstUnsettled())
	e.record(event{At: m.now, Kind: store.EventTakeover, Fence: fence, Number: number, NewFence: e.fence})
	return m.grantedReply(e, unchecked)
}

// firstUnsettled is the grant of the earliest attempt of which nobody has said what became of it,
// if nobody has of the current one.
func (e *entry) firstUnsettled() instant {
	if e.unsettledSince != 0 {
		return e.unsettledSince
	}
	return e.granted
}

// known is until when an entry tells all: an operator's word is newer than the grant it is about.
func (e *entry) known() instant {
	switch {
	case e.attempt != "":
		return e.granted
	case e.state == store.StateInProgress: // forced
		return e.expires.add(-e.retention)
	}
	return e.ended
}

// mayBeLeased is the paragraph "A lease may be forgotten".
func (m *model) mayBeLeased(ns space, e *entry) bool {
	return ns.forgets(e.known(), 0) && m.now < ns.floor.add(15*time.Minute)
}

func (m *model) leased(ns space, unchecked bool) reply {
	end := ns.floor.add(15 * time.Minute)
	return reply{Kind: "in progress", LeaseEnd: end, Remaining: end.since(m.now), RetryLater: true, Unchecked: unchecked}
}

// importOutcome is the paragraph "Import, …".
func (m *model) importOutcome(ns space, o call) reply {
	done := o.Done
	if done == 0 {
		done = m.now
	}
	switch {
	case o.Outcome != nil && done > m.now:
		return refused(store.ErrInvalidArgument)
	case o.Outcome != nil && m.now >= done.add(ns.retention):
		return refused(store.ErrKeyExpired)
	}
	e := m.live(o.Key)
	if e != nil && (e.state != store.StateReleased || !ns.forgets(e.known(), 0)) {
		kind := "known otherwise"
		same := e.outcome != nil && (o.Fingerprint == store.UnknownFingerprint || o.Fingerprint == e.fingerprint)
		if o.Outcome == nil && e.state == store.StateReleased || o.Outcome != nil && same && outcomeText(o.Outcome) == outcomeText(e.outcome) {
			kind = "known as that"
		}
		return reply{Kind: kind, Record: e.view(o.Key)}
	}
	fence, number := int64(0), 0
	if e == nil {
		e = &entry{number: 1, granted: m.now, leaseEnd: m.now, limit: m.now, hold: ns.hold, retention: ns.retention}
		if expired := m.entries[o.Key]; expired != nil {
			e.fence = expired.fence
		}
		m.entries[o.Key] = e
	} else {
		fence, number = e.fence, e.number
	}
	m.growFence(e)
	e.end(e.attempt)
	e.attempt, e.released, e.fingerprint = "", 0, o.Fingerprint
	m.settle(e, o.Outcome)
	if o.Outcome != nil {
		e.ended = done
		e.setExpiry()
	}
	e.record(event{At: m.now, Kind: store.EventImported, Fence: fence, Number: number, NewFence: e.fence, Actor: o.Actor, Reason: o.Reason})
	return reply{Kind: "imported", Record: e.view(o.Key)}
}

// claimNew is row 10. An expired entry leaves nothing but its fence.
func (m *model) claimNew(ns space, o call) reply {
	since := o.Intent.add(-ns.skew())
	if ns.forgets(0, o.Intent) {
		return refused(store.ErrUnknownHistory)
	}
	if o.Intent != 0 && m.now >= o.Intent.add(ns.shortestRetention(since)-ns.skew()) {
		return refused(store.ErrKeyExpired)
	}
	e := &entry{fingerprint: o.Fingerprint}
	if expired := m.entries[o.Key]; expired != nil {
		e.fence = expired.fence
	}
	m.entries[o.Key] = e
	m.grant(ns, e, o, 0)
	e.previous = 0
	return m.grantedReply(e, false)
}

// claimAgain is row 5.
func (m *model) claimAgain(ns space, e *entry, o call, unchecked bool) reply {
	if m.lapsed(e) {
		if m.now >= e.limit {
			return refused(store.ErrAttemptTooLong)
		}
		if m.mayBeLeased(ns, e) {
			return m.leased(ns, unchecked)
		}
		e.leaseEnd = min(m.now.add(ns.leaseFor(o.Lease)), e.limit)
		e.setExpiry()
	}
	if ns.forgets(e.granted, o.Intent) {
		e.unsettledSince = e.firstUnsettled()
	}
	return m.grantedReply(e, unchecked)
}

// grant is the paragraph "A grant has …".
func (m *model) grant(ns space, e *entry, o call, unsettledSince instant) {
	e.previous = e.fence
	m.growFence(e)
	e.state, e.attempt, e.number = store.StateInProgress, o.AttemptID, e.number+1
	e.granted, e.ended = m.now, 0
	e.limit = m.now.add(ns.maxAttempt)
	e.leaseEnd = min(m.now.add(ns.leaseFor(o.Lease)), e.limit)
	e.hold, e.retention = ns.hold || o.Hold, ns.retention
	if beyond := o.Intent.add(-ns.skew()).since(m.now); o.Intent != 0 && beyond > 0 {
		e.retention = ns.longest + beyond
	}
	e.unsettledSince, e.released = unsettledSince, 0
	e.setExpiry()
}

func (m *model) growFence(e *entry) { e.fence = max(e.fence+1, m.now.micros()) }

func (m *model) grantedReply(e *entry, unchecked bool) reply {
	return reply{Kind: "granted", Fence: e.fence, Previous: e.previous, Number: e.number, Unsettled: e.unsettledSince != 0, UnsettledSince: e.unsettledSince,
		GrantedAt: e.granted, LeaseEnd: e.leaseEnd, Remaining: e.leaseEnd.since(m.now), Unchecked: unchecked}
}

func (m *model) renew(ns space, e *entry, o call) reply {
	switch {
	case e.state == store.StateCompleted:
		return refused(store.ErrAlreadyCompleted)
	case e.released != 0:
		return refused(store.ErrStaleAttempt)
	case m.lapsed(e):
		return refused(store.ErrLeaseExpired)
	}
	wanted := m.now.add(ns.leaseFor(o.Lease))
	if e.leaseEnd == e.limit && wanted > e.limit {
		return refused(store.ErrAttemptTooLong)
	}
	e.leaseEnd = max(e.leaseEnd, min(wanted, e.limit))
	e.setExpiry()
	return reply{Kind: "renewed", LeaseEnd: e.leaseEnd, Remaining: e.leaseEnd.since(m.now)}
}

func (m *model) complete(e *entry, o call) reply {
	switch {
	case e.state == store.StateCompleted:
		if outcomeText(o.Outcome) != outcomeText(e.outcome) {
			return refused(store.ErrAlreadyCompleted)
		}
		return reply{Kind: "recorded", EndedAt: e.ended, ExpiresAt: e.expires}
	case e.released == store.EffectNone:
		m.evidence(e, o)
		return refused(store.ErrStaleAttempt)
	case m.lapsed(e) && m.now > e.limit:
		m.evidence(e, o)
		return refused(store.ErrAttemptTooLong)
	}
	e.endedAttempts = slices.DeleteFunc(e.endedAttempts, func(id string) bool { return id == e.attempt })
	m.settle(e, o.Outcome)
	return reply{Kind: "recorded", EndedAt: e.ended, ExpiresAt: e.expires}
}

// settle ends an entry, with an outcome or without.
func (m *model) settle(e *entry, outcome *store.Outcome) {
	e.state = store.StateReleased
	if outcome != nil {
		e.state, e.outcome, e.released = store.StateCompleted, outcome, 0
	}
	e.unsettledSince, e.ended = 0, m.now
	e.setExpiry()
}

func (m *model) release(e *entry, o call) reply {
	switch {
	case e.state == store.StateCompleted:
		return refused(store.ErrAlreadyCompleted)
	case e.released != 0:
		if e.released != o.Effect {
			return refused(store.ErrStaleAttempt)
		}
		return reply{Kind: "released", State: e.state}
	}
	e.released = o.Effect
	e.end(e.attempt)
	if o.Effect == store.EffectNone && e.unsettledSince == 0 {
		m.settle(e, nil)
	} else {
		e.leaseEnd = min(e.leaseEnd, m.now)
		e.setExpiry()
	}
	return reply{Kind: "released", State: e.state}
}

func (m *model) lookup(ns space, e *entry, o call) reply {
	lapsed := m.lapsed(e)
	r := reply{Kind: "found", State: e.state, Lapsed: lapsed, Policy: policyOf(e.hold), Fence: e.fence, Number: e.number,
		Unsettled: e.state == store.StateInProgress && (e.unsettledSince != 0 || lapsed),
		GrantedAt: e.granted, LeaseEnd: e.leaseEnd, EndedAt: e.ended, ExpiresAt: e.expires}
	if lapsed && !e.hold && m.mayBeLeased(ns, e) {
		r.Lapsed, r.LeaseEnd = false, ns.floor.add(15*time.Minute)
	}
	if e.state == store.StateCompleted {
		r.Withheld = compareFingerprints(o.Fingerprint, e.fingerprint) != fingerprintsEqual
		if !r.Withheld {
			r.Outcome = outcomeText(e.outcome)
		}
	}
	return r
}

func (m *model) resolve(e *entry, o call) reply {
	if o.Fence != 0 && o.Fence != e.fence {
		return refused(store.ErrStaleFence)
	}
	if !m.lapsed(e) {
		return refused(store.ErrNotLapsed)
	}
	m.endByOperator(e, o, store.EventResolved)
	m.settle(e, o.Outcome)
	return e.changed(o.Key)
}

func (m *model) force(e *entry, o call) reply {
	if o.Fence != 0 && o.Fence != e.fence {
		return refused(store.ErrStaleFence)
	}
	if e.state != store.StateInProgress {
		return refused(store.ErrNotHeld)
	}
	m.endByOperator(e, o, store.EventForceReleased)
	e.leaseEnd = min(e.leaseEnd, m.now)
	e.hold = false
	e.expires = m.now.add(e.retention)
	return e.changed(o.Key)
}

// endByOperator leaves no attempt that is current.
func (m *model) endByOperator(e *entry, o call, kind store.EventKind) {
	fence := e.fence
	m.growFence(e)
	e.end(e.attempt)
	e.attempt, e.released = "", 0
	e.record(event{At: m.now, Kind: kind, Fence: fence, Number: e.number, NewFence: e.fence, Actor: o.Actor, Reason: o.Reason})
}

// evidence keeps a late outcome, unless its fence was never granted. The number is known
// only of the current attempt.
func (m *model) evidence(e *entry, o call) {
	if o.Fence > e.fence {
		return
	}
	m.late = true
	late := event{At: m.now, Kind: store.EventLateOutcome, Fence: o.Fence, Outcome: outcomeText(o.Outcome),
		Digest: outcomeDigest(o.Outcome), Size: outcomeBytes(o.Outcome)}
	if late.Size > modelEvidence { // the random ones have their code in the first two bytes
		late.Outcome = outcomeText(&store.Outcome{Status: o.Outcome.Status[:min(2, len(o.Outcome.Status))], BodyOmitted: true})
	}
	if o.Fence == e.fence && o.AttemptID == e.attempt {
		late.Number = e.number
	}
	e.record(late)
}

func (m *model) live(key store.Key) *entry {
	e := m.entries[key]
	if e == nil || e.expires != 0 && m.now >= e.expires {
		return nil
	}
	return e
}

func (m *model) lapsed(e *entry) bool {
	return e.state == store.StateInProgress && m.now >= e.leaseEnd
}

func (e *entry) setExpiry() {
	switch {
	case e.state != store.StateInProgress:
		e.expires = e.ended.add(e.retention)
	case e.hold:
		e.expires = 0
	default:
		e.expires = e.leaseEnd.add(e.retention)
	}
}

func (e *entry) end(attempt string) {
	if attempt == "" || slices.Contains(e.endedAttempts, attempt) {
		return
	}
	e.endedAttempts = append(e.endedAttempts, attempt)
	if len(e.endedAttempts) > modelEndedAttempts {
		e.endedAttempts = e.endedAttempts[1:]
	}
}

// record keeps an event unless one that differs only in its time is kept already.
func (e *entry) record(ev event) {
	for _, kept := range e.events {
		kept.At = ev.At
		if kept == ev {
			return
		}
	}
	e.events = append(e.events, ev)
	var ofKind []int
	for i, kept := range e.events {
		if kept.Kind == ev.Kind {
			ofKind = append(ofKind, i)
		}
	}
	if len(ofKind) > modelEvents {
		e.events = slices.Delete(e.events, ofKind[0], ofKind[0]+1)
	}
}

func (ns space) skew() time.Duration { return min(time.Minute, ns.retention/10) }

// forgets says that what an intent came to after an instant may be in a part that was lost.
func (ns space) forgets(known, intent instant) bool {
	newer := intent != 0 && intent.add(-time.Minute) > ns.floor // whatever the skew was then
	return ns.floor != 0 && known <= ns.floor && !newer
}

func (ns space) leaseFor(asked time.Duration) time.Duration {
	if asked == 0 {
		return ns.lease
	}
	return asked
}

func (ns space) shortestRetention(since instant) time.Duration {
	shortest := ns.retention
	for _, past := range ns.past {
		if past.until >= since {
			shortest = min(shortest, past.retention)
		}
	}
	return shortest
}

// setRetention changes the policy and remembers what was in force.
func (ns space) setRetention(retention time.Duration, now instant) space {
	ns.past = append(slices.Clone(ns.past), pastRetention{ns.retention, now})
	ns.retention = retention
	return ns
}

type fingerprintComparison int

const (
	fingerprintsEqual fingerprintComparison = iota
	fingerprintsDiffer
	fingerprintsUnchecked // made by two algorithms
)

func compareFingerprints(a, b store.Fingerprint) fingerprintComparison {
	if a == store.UnknownFingerprint || b == store.UnknownFingerprint {
		return fingerprintsUnchecked
	}
	if a.Digest == b.Digest && a.Version == b.Version {
		return fingerprintsEqual
	}
	if a.Digest != "" && b.Digest != "" && a.Version != b.Version {
		return fingerprintsUnchecked
	}
	return fingerprintsDiffer
}

func outcomeBytes(o *store.Outcome) int {
	n := len(o.Status) + len(o.Body) + len(o.BodyType)
	for _, e := range slices.Concat(o.Header, o.Trailer) {
		n += len(e.Name) + len(e.Value)
	}
	return n
}

func policyOf(hold bool) store.LapsePolicy {
	if hold {
		return store.Hold
	}
	return store.Takeover
}
