package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A store that was restored, or that follows an asynchronous copy after a failover, has
// forgotten what was done last. Its recovery begins with a floor: keys that may have been
// forgotten are refused. Operators then import what they find out about single keys, and
// lift the floor of a namespace when nothing from before it can come any more.

// Recovery is the operator's way back from a store that has forgotten something. Errors and
// durability are as for [Store].
type Recovery interface {
	// BeginRecovery sets the recovery floor of every namespace, and of those created later, to
	// the store's present. A floor is never lowered. The store is not Joined any more; see
	// [Membership]. If the request names a namespace, it is about that one alone, and the store
	// stays joined.
	BeginRecovery(ctx context.Context, req BeginRecoveryRequest) (BegunRecovery, error)
	// LiftRecovery takes the recovery floor off a namespace. Where none stands: ErrNoFloor, unless
	// the same request has lifted it. Where the request lacks what is to be confirmed: ErrNotConfirmed.
	LiftRecovery(ctx context.Context, req LiftRecoveryRequest) (Namespace, error)
}

// BeginRecoveryRequest says what was lost.
type BeginRecoveryRequest struct {
	// CompleteUntil is up to when the store knows every key: the time of the backup, or of the
	// last transaction that was copied; [KnowsNothing] if it never did. It is kept, for whoever
	// finds out about the keys since.
	CompleteUntil time.Time
	// Namespace is the one that something was forgotten of. Empty: all of them.
	Namespace string
	Actor     string
	Reason    string // 1 to 1024 bytes
}

// KnowsNothing is the CompleteUntil of a store that knew no key ever.
var KnowsNothing = time.Unix(0, 0).UTC()

// BegunRecovery is what BeginRecovery did.
type BegunRecovery struct {
	Namespaces []Namespace // those that it is about, by name
	// Now is the store's clock. From InForce on, which may be later, no process that serves
	// the store grants by what was before.
	Now, InForce time.Time
}

// LiftRecoveryRequest says whose floor is lifted.
type LiftRecoveryRequest struct {
	Namespace string
	// ForNew lifts the floor that namespaces created from now on begin with. The Namespace is
	// empty then, and none that exists changes.
	ForNew bool
	// What the operator has understood; it is wanted only where it matters. NothingKnown: nothing
	// is known from before the floor, and all is settled that retention covers. LeasesEnded: it is
	// less than MaxLease since the floor, and nobody acts any more by a lease from before it, which
	// the store may have forgotten. AllRegions: it is also lifted in the other regions that have the namespace in common.
	NothingKnown, LeasesEnded, AllRegions bool
	Actor                                 string
	Reason                                string // 1 to 1024 bytes
}

// ImportRequest says what became of a key, of which the store knows nothing.
type ImportRequest struct {
	Key Key
	// Fingerprint is that of the request that was carried out. AnyFingerprint, with an empty
	// one, says that it is not known: then repeats are marked as incomparable.
	Fingerprint    Fingerprint
	AnyFingerprint bool
	// Outcome answers repeats from now on. Nil: nothing happened, and the key may be claimed.
	Outcome *Outcome
	// CompletedAt is when it was carried out; retention counts from then. Zero: now.
	CompletedAt time.Time
	Actor       string
	Reason      string // 1 to 1024 bytes
	Epoch       int64  // as in ClaimRequest
}

// ImportAnswer is what an import did. A key that is known is never changed by it.
type ImportAnswer struct {
	// Record is what the store has now.
	Record *Record
	// Imported says that it comes from this request, Same that the store had the same before.
	// If it is neither, the store knew something else.
	Imported, Same bool
}

// RecoveryKind says what a [RecoveryStep] did.
type RecoveryKind uint8

// The kinds of steps.
const (
	RecoveryBegun RecoveryKind = iota + 1
	RecoveryLifted
	// RecoveryCarried is a step that an old home has begun, and no floor yet: the move that brings
	// it may be abandoned.
	RecoveryCarried
)

// RecoveryStep is what was done about the recovery floor of a namespace.
type RecoveryStep struct {
	At   time.Time
	Kind RecoveryKind
	// ForNew, of a step of the default namespace, says that it is about the floor that namespaces
	// to come begin with: what was begun is also, what was lifted alone.
	ForNew bool
	// Floor is the one that stands since, or that was lifted.
	Floor time.Time
	// CompleteUntil is up to when the store knew every key. See [BeginRecoveryRequest].
	CompleteUntil time.Time
	Actor, Reason string
}

// maxFloorAge is after what time a floor concerns no namespace that is created: what one of the
// same name had forgotten has expired by then.
const maxFloorAge = 35*24*time.Hour + MaxLease

// BeginRecovery returns the namespace with the floor at now. Beginning again, without a lift in
// between, for the same instant replaces the step, and is about the same floors: a start was
// interrupted, or the store has joined other ones only now.
func (n Namespace) BeginRecovery(req BeginRecoveryRequest, now time.Time) Namespace {
	n.RecoveryFloor = later(n.RecoveryFloor, now)
	step := RecoveryStep{At: now, Kind: RecoveryBegun, ForNew: n.Name == DefaultNamespace && req.Namespace == "", Floor: n.RecoveryFloor,
		CompleteUntil: req.CompleteUntil.UTC().Truncate(time.Microsecond), Actor: req.Actor, Reason: req.Reason}
	n.Recovery = slices.Clone(n.Recovery)
	for i := len(n.Recovery) - 1; i >= 0 && n.Recovery[i].Kind != RecoveryLifted; i-- {
		if old := n.Recovery[i]; old.Kind == RecoveryBegun && old.CompleteUntil.Equal(step.CompleteUntil) {
			step.ForNew = step.ForNew || old.ForNew
			n.Recovery = slices.Delete(n.Recovery, i, i+1)
		}
	}
	if step.ForNew {
		n.FloorForNew = later(n.FloorForNew, now)
	}
	return n.withStep(step)
}

// LiftRecovery returns the namespace without the floor that the request is about. For those
// created later that is the default namespace's.
func (n Namespace) LiftRecovery(req LiftRecoveryRequest, now time.Time) (Namespace, error) {
	floor := &n.RecoveryFloor
	if req.ForNew {
		floor = &n.FloorForNew
	}
	if floor.IsZero() {
		return n, n.liftedBy(req)
	}
	if err := n.checkLift(req, *floor, now); err != nil {
		return Namespace{}, err
	}
	step := RecoveryStep{At: now, Kind: RecoveryLifted, ForNew: req.ForNew, Floor: *floor, Actor: req.Actor, Reason: req.Reason}
	*floor = time.Time{}
	n.UpdatedAt = n.updated(now) // so that who read the floor before does not set it again
	return n.withStep(step), nil
}

// liftedBy refuses to lift a floor that does not stand, unless the same request has lifted it.
func (n *Namespace) liftedBy(req LiftRecoveryRequest) error {
	for _, step := range slices.Backward(n.Recovery) {
		if step.Kind == RecoveryLifted && step.ForNew == req.ForNew {
			if step.Actor == req.Actor && step.Reason == req.Reason {
				return nil
			}
			break
		}
	}
	return Refuse(ErrNoFloor, "nothing was done "+req.whose()+"; what was done before is in its list of recovery steps (idemd recovery status)")
}

// checkLift refuses to lift a floor if it is not confirmed what that may lead to.
func (n *Namespace) checkLift(req LiftRecoveryRequest, floor, now time.Time) error {
	if len(n.SharedBy) > 1 && !req.AllRegions {
		return Refuse(ErrNotConfirmed, fmt.Sprintf("%s are in one database and have one floor %s; if what each of them may have forgotten is settled, say so (idemd recovery lift --all-regions); nothing was done",
			RegionsText(n.SharedBy), req.whose()))
	}
	if n.begunAsEmpty(req.ForNew) && !req.NothingKnown {
		retention := n.Retention
		if req.ForNew {
			retention = TierMonth.MaxRetention()
		}
		return Refuse(ErrNotConfirmed, fmt.Sprintf("nothing is known %s from before the floor (%s), whatever the backup has; what is not settled and imported is done twice; "+
			"if all is that retention covers (%s), say so (idemd recovery lift --nothing-known); nothing was done",
			req.whose(), floor.UTC().Format(time.RFC3339Nano), SpanText(retention)))
	}
	if end := floor.Add(MaxLease); now.Before(end) && !req.LeasesEnded {
		return Refuse(ErrNotConfirmed, fmt.Sprintf("a lease from before the floor, which the store may have forgotten, can run until %s, and what it is for would be granted to another %s; "+
			"lift it then, or, if nobody acts by such a lease any more, say so (idemd recovery lift --leases-ended); nothing was done",
			end.UTC().Format(time.RFC3339Nano), req.whose()))
	}
	return nil
}

// RegionsText names regions.
func RegionsText(regions []string) string {
	switch len(regions) {
	case 0:
		return "no region"
	case 1:
		return "region " + regions[0]
	}
	return "regions " + strings.Join(regions, ", ")
}

// whose says which floor it is about.
func (r *LiftRecoveryRequest) whose() string {
	if r.ForNew {
		return "for new namespaces"
	}
	return "for namespace " + r.Namespace
}

// Recovering is the step by which the recovery floor stands that has not been lifted.
func (n *Namespace) Recovering() (RecoveryStep, bool) {
	steps := n.Begun()
	if n.RecoveryFloor.IsZero() || len(steps) == 0 {
		return RecoveryStep{}, false
	}
	return steps[len(steps)-1], true
}

// Create returns the namespace as a store that has none of its name makes it at now. One that
// was lost may have had that name: it begins with the floor that the default namespace has for
// it. Other stores may have the namespace already: it begins with the past retentions that are
// told of these.
func (n Namespace) Create(def *Namespace, now time.Time) Namespace {
	n.CreatedAt, n.UpdatedAt, n.IfUpdatedAt, n.Placement = now, now, time.Time{}, Placement{}
	n.PastRetentions = joinPast(nil, recentPast(n.PastRetentions, now))
	n.FloorForNew, n.Recovery, n.SharedBy = time.Time{}, nil, nil
	if def == nil || def.FloorForNew.IsZero() || now.Sub(def.FloorForNew) > maxFloorAge {
		return n
	}
	n.RecoveryFloor = later(n.RecoveryFloor, def.FloorForNew)
	n.Recovery = floorSteps(def.FloorForNew, def.begun(true))
	return n
}

// Validate checks what can be checked without the store's clock.
func (r *BeginRecoveryRequest) Validate() error {
	var until error
	if r.CompleteUntil.IsZero() {
		until = invalid("the instant is missing up to which the store knows every key")
	}
	var name error
	if r.Namespace != "" {
		name = ValidateNamespaceName(r.Namespace)
	}
	return firstError(until, name, validateIntentTime(r.CompleteUntil), validateForced(r.Actor, r.Reason))
}

// Concerns reports whether a recovery of what was lost is one of the namespace.
func (r *BeginRecoveryRequest) Concerns(namespace string) bool {
	return r.Namespace == "" || r.Namespace == namespace
}

// Check refuses an instant that has not come.
func (r *BeginRecoveryRequest) Check(now time.Time) error {
	if r.CompleteUntil.After(now) {
		return invalid("the store cannot know every key up to %s: it is %s here",
			r.CompleteUntil.UTC().Format(time.RFC3339Nano), now.Format(time.RFC3339Nano))
	}
	return nil
}

// Validate checks the request.
func (r *LiftRecoveryRequest) Validate() error {
	var name error
	switch {
	case !r.ForNew:
		name = ValidateNamespaceName(r.Namespace)
	case r.Namespace != "":
		name = invalid("namespace %q is named, and also those that are created later; lift one floor at a time", r.Namespace)
	}
	return firstError(name, validateForced(r.Actor, r.Reason))
}

// Target is the namespace in which the floor is kept.
func (r *LiftRecoveryRequest) Target() string {
	if r.ForNew {
		return DefaultNamespace
	}
	return r.Namespace
}

// Validate checks what can be checked without the namespace.
func (r *ImportRequest) Validate() error {
	var outcome, fingerprint, at error
	if r.Outcome != nil {
		outcome = validateOutcome(r.Outcome)
	}
	if r.AnyFingerprint && r.Fingerprint != (Fingerprint{}) {
		fingerprint = invalid("a fingerprint is given, and also that it is not known; give one of them")
	}
	if r.Outcome == nil && !r.CompletedAt.IsZero() {
		at = invalid("a completion is given of what did not happen")
	}
	return firstError(r.Key.Validate(), r.Fingerprint.validate(), fingerprint, outcome, at,
		validateIntentTime(r.CompletedAt), validateForced(r.Actor, r.Reason))
}

// DecideImport is the table's Import. For old see [DecideClaim].
func DecideImport(old *Record, ns *Namespace, req ImportRequest, now time.Time) (ImportAnswer, Change, error) {
	refused := ns.refuse(old, req.Epoch, ns.checkImportRequest(&req), now)
	return settle(ns, refused, func() (ImportAnswer, Change, error) { return decideImport(old, ns, req, now) })
}

func decideImport(old *Record, ns *Namespace, req ImportRequest, now time.Time) (ImportAnswer, Change, error) {
	if err := ns.checkCompletion(&req, now); err != nil {
		return ImportAnswer{}, Change{}, err
	}
	rec := live(old, now)
	if rec != nil && (rec.State != StateReleased || !ns.mayHaveForgotten(rec.knownSince(), time.Time{})) {
		return ImportAnswer{Record: rec, Same: rec.is(&req)}, Change{}, nil
	}
	next := &Record{
		Key: req.Key, Fence: nextFence(old, now), AttemptNumber: 1, GrantedAt: now, LeaseEnd: now, AttemptLimit: now,
		LapsePolicy: ns.LapsePolicy, Retention: ns.Retention,
	}
	if rec != nil {
		next = rec.endAttempt(now)
	}
	next.Fingerprint = req.Fingerprint
	if req.AnyFingerprint {
		next.Fingerprint = UnknownFingerprint
	}
	if req.Outcome == nil {
		next.end(StateReleased, now)
	} else {
		next.complete(req.Outcome, req.Outcome.Digest(), req.completedAt(now))
	}
	event := &Event{At: now, Kind: EventImported, NewFence: next.Fence, Actor: req.Actor, Reason: req.Reason}
	if rec != nil {
		event.Fence, event.AttemptNumber = rec.Fence, rec.AttemptNumber
	}
	return ImportAnswer{Record: next, Imported: true}, Change{Record: next, Event: event}, nil
}

// checkImportRequest refuses what the namespace could not have had.
func (n *Namespace) checkImportRequest(req *ImportRequest) error {
	if err := n.checkEntity(req.Key); err != nil || req.Outcome == nil {
		return err
	}
	return n.checkOutcome(req.Outcome)
}

// checkCompletion refuses what was completed when the namespace could not keep it.
func (n *Namespace) checkCompletion(req *ImportRequest, now time.Time) error {
	if req.Outcome == nil {
		return nil
	}
	at := req.completedAt(now)
	switch {
	case at.After(now):
		return invalid("completed at %s is in the future; it is %s here", at.Format(time.RFC3339Nano), now.Format(time.RFC3339Nano))
	case !now.Before(at.Add(n.Retention)):
		return Refuse(ErrKeyExpired, fmt.Sprintf("it was completed at %s and outcomes are kept for %s: repeats are not answered any more",
			at.Format(time.RFC3339), SpanText(n.Retention)))
	}
	return nil
}

func (r *ImportRequest) completedAt(now time.Time) time.Time {
	if r.CompletedAt.IsZero() {
		return now
	}
	return r.CompletedAt.UTC().Truncate(time.Microsecond)
}

// is reports whether the record says what the request says. What nothing came of says nothing
// of the request: the next one may be another.
func (r *Record) is(req *ImportRequest) bool {
	if req.Outcome == nil {
		return r.State == StateReleased
	}
	sameRequest := req.AnyFingerprint || r.Fingerprint == req.Fingerprint
	return r.State == StateCompleted && sameRequest && r.OutcomeDigest == req.Outcome.Digest()
}

// knownSince is until when the record tells what became of its key: up to its grant, or, if an
// operator ended the attempt, up to that.
func (r *Record) knownSince() time.Time {
	switch {
	case r.AttemptID != "":
		return r.GrantedAt
	case r.State == StateInProgress: // a ForceRelease, which keeps no other time
		return r.ExpiresAt.Add(-r.Retention)
	}
	return r.EndedAt
}
