package store

import (
	"context"
	"fmt"
	"time"
)

// Placement says where the keys of a namespace live. Stores keep it and refuse what was sent
// by another one; what Rule means is package placement's business. The zero Placement is
// that of a store that serves one region alone.
type Placement struct {
	// Epoch grows whenever a key may have got another home. What is sent under another epoch
	// than the stored one is refused with ErrWrongRegion: it may have been sent by yesterday's
	// map. Zero: never placed.
	Epoch int64
	// Revision grows with every change of the placement, those that leave homes as they are
	// included. Of two placements the one with the higher revision is in force.
	Revision int64
	// Rule says which region is the home of which key. At most MaxRuleBytes.
	Rule string
	// Move is the move that is under way, if Phase is not zero.
	Move Move
}

// Move is how far a namespace has got on its way to another home.
type Move struct {
	To    string // the region
	Phase MovePhase
}

// MovePhase is a step of a move.
type MovePhase uint8

// The phases of a move.
const (
	// MoveFrozen: nothing is granted. Repeats are answered, and whoever holds a lease may
	// renew it, complete and release.
	MoveFrozen MovePhase = iota + 1
	// MoveSealed: no record changes, and only of what is completed anything is said. Records are copied.
	MoveSealed
	// MoveFlipped: the homes by the rule serve, and others forget what they have. So a move
	// begins, under its first epoch, and ends, under the next one; and so it is abandoned.
	MoveFlipped
)

// MaxRuleBytes is how long [Placement.Rule] may be.
const MaxRuleBytes = 4096

// Placed is what PlaceNamespace did.
type Placed struct {
	Namespace Namespace
	// Now is the store's clock. From InForce on, which may be later, no process that serves
	// the store acts by an older placement.
	Now, InForce time.Time
}

// Placements keeps where namespaces live, and lets their records be carried from one store to
// another. Errors and durability are as for [Store].
type Placements interface {
	// PlaceNamespace replaces the placement of a namespace. One whose revision is not above
	// the stored one's is refused with ErrWrongRegion, unless it is the stored one: then
	// nothing changes.
	PlaceNamespace(ctx context.Context, namespace string, p Placement) (Placed, error)
	// ImportRecords stores records, at most MaxPageSize, with their events as they are, in the
	// place of stored ones unless these have a higher fence: what comes is what the home knows,
	// and the store may have an older copy of it, from before the attempt ended. They are not
	// changed any more, by the store or by the caller. The namespace is sealed at the revision;
	// else ErrWrongRegion. If one of them is refused, none is stored. After another error, or if
	// the placement changes meanwhile, some may be: send them all again.
	ImportRecords(ctx context.Context, namespace string, revision int64, records []Inspection) error
	// TakeHistory has a namespace that is sealed or flipped at the revision, else ErrWrongRegion, take over
	// what decides about keys that are not known, from the same namespace of an old home; see
	// [Namespace.TakeHistory].
	TakeHistory(ctx context.Context, revision int64, from Namespace) error
	// ForgetRecords removes records of the namespace, live and expired ones, save those of keys
	// that keep wants (nil: it wants none), and reports whether there may be more. It is sealed
	// or flipped at the revision, else ErrWrongRegion. One call does a bounded part of the work;
	// those of one revision keep the same.
	ForgetRecords(ctx context.Context, namespace string, revision int64, keep func(Key) bool) (more bool, err error)
}

// Validate checks a placement that is to be stored.
func (p *Placement) Validate() error {
	moving := p.Move.Phase != 0
	switch {
	case p.Epoch < 1 || p.Revision < p.Epoch:
		return invalid("a placement has an epoch of 1 or more and a revision that is not below it, not %d and %d", p.Epoch, p.Revision)
	case p.Rule == "" || len(p.Rule) > MaxRuleBytes:
		return invalid("the rule of a placement has 1 to %d bytes, not %d", MaxRuleBytes, len(p.Rule))
	case p.Move.Phase > MoveFlipped:
		return invalid("the phase of a move is not one of FROZEN, SEALED and FLIPPED")
	case moving != (p.Move.To != ""):
		return invalid("a move has both a phase and a region to go to")
	}
	return firstError(validateText("rule", p.Rule, MaxRuleBytes), validateText("region", p.Move.To, MaxEntityBytes))
}

// Place returns the namespace with p in the place of its placement. The floors of old homes that it
// took over while it was sealed stand if its keys have come here with the next placement, and are dropped
// otherwise.
func (n Namespace) Place(p Placement) (Namespace, error) {
	if err := p.Validate(); err != nil {
		return Namespace{}, err
	}
	old := n.Placement
	if p != old && (p.Revision <= old.Revision || p.Epoch < old.Epoch) {
		return Namespace{}, Refuse(ErrWrongRegion, fmt.Sprintf(
			"the placement of namespace %q has revision %d and epoch %d here; one with %d and %d cannot follow it",
			n.Name, old.Revision, old.Epoch, p.Revision, p.Epoch))
	}
	if p != old && len(n.Recovery) > 0 {
		n = n.unsealed(p.Follows(old))
	}
	n.Placement = p
	return n, nil
}

// Follows reports whether the placement ends a move that was sealed by the old one: all that was known
// of the keys is where they were to go.
func (p *Placement) Follows(old Placement) bool {
	return old.Move.Phase == MoveSealed && p.Epoch > old.Epoch && p.Revision == old.Revision+1
}

// CheckMove refuses what belongs to another revision, or to no move in one of the phases.
func (n *Namespace) CheckMove(revision int64, phases ...MovePhase) error {
	if n.Placement.Revision == revision {
		for _, phase := range phases {
			if n.Placement.Move.Phase == phase {
				return nil
			}
		}
	}
	return Refuse(ErrWrongRegion, fmt.Sprintf(
		"the placement of namespace %q has revision %d here, and its move is not at this step of revision %d", n.Name, n.Placement.Revision, revision))
}

// CheckImport refuses records that cannot have been stored in the namespace, and too many of
// them. What is kept of a key decides its future, and who sends it may be damaged.
func (n *Namespace) CheckImport(records ...Inspection) error {
	if len(records) > MaxPageSize {
		return invalid("%d records are sent, at most %d are allowed", len(records), MaxPageSize)
	}
	for i := range records {
		if err := n.checkImport(&records[i]); err != nil {
			return err
		}
	}
	return nil
}

func (n *Namespace) checkImport(in *Inspection) error {
	rec := in.Record
	switch {
	case rec == nil:
		return invalid("a record is missing")
	case rec.Key.Namespace != n.Name:
		return invalid("a record of namespace %q cannot be stored in %q", rec.Key.Namespace, n.Name)
	}
	return firstError(rec.Key.Validate(), rec.checkHolder(), rec.checkTimes(), rec.checkOutcome(), checkEvents(in.Events))
}

// checkHolder checks whose the record is, and was.
func (r *Record) checkHolder() error {
	switch {
	case r.Fence < 1 || r.PreviousFence < 0 || r.PreviousFence >= r.Fence:
		return invalid("the fences %d and, before it, %d of a record do not grow", r.Fence, r.PreviousFence)
	case r.AttemptNumber < 1 || len(r.AttemptID) > MaxAttemptIDBytes || len(r.Ended) > MaxEndedAttempts:
		return invalid("the attempts of a record are not what a store keeps")
	case r.ReleasedWith > EffectUnknown:
		return invalid("a record was released with an effect that is none")
	}
	for _, id := range r.Ended {
		if err := validateAttemptID(id); err != nil {
			return err
		}
	}
	if r.Fingerprint == UnknownFingerprint {
		return nil
	}
	return r.Fingerprint.validate()
}

// checkTimes checks that the record has the times of its state, in whole microseconds.
func (r *Record) checkTimes() error {
	held := r.State == StateInProgress
	for _, t := range [...]time.Time{r.GrantedAt, r.LeaseEnd, r.AttemptLimit, r.EndedAt, r.ExpiresAt, r.UnsettledSince} {
		if t.Nanosecond()%1000 != 0 || !t.IsZero() && (t.Year() < 1970 || t.Year() > 9999) {
			return invalid("a time of a record is not in whole microseconds, or not between the years 1970 and 9999")
		}
	}
	switch {
	case r.State < StateInProgress || r.State > StateReleased:
		return invalid("the state of a record is not one of IN_PROGRESS, COMPLETED and RELEASED")
	case r.LapsePolicy != Takeover && r.LapsePolicy != Hold:
		return invalid("the lapse policy of a record is not one of TAKEOVER and HOLD")
	case r.GrantedAt.IsZero() || r.LeaseEnd.IsZero() || r.LeaseEnd.After(r.AttemptLimit) || r.Retention <= 0 || r.Retention%time.Microsecond != 0:
		return invalid("a record has no grant, or no lease or retention that can come of one")
	case r.EndedAt.IsZero() != held:
		return invalid("a record has the time of its end if it has ended, and only then")
	case r.ExpiresAt.IsZero() != (held && r.LapsePolicy == Hold):
		return invalid("a record never expires if it is in progress under HOLD, and only then")
	}
	return nil
}

func (r *Record) checkOutcome() error {
	if (r.State == StateCompleted) != (r.Outcome != nil) {
		return invalid("a record has an outcome if it is completed, and only then")
	}
	if r.Outcome == nil {
		return nil
	}
	if r.Outcome.Digest() != r.OutcomeDigest {
		return Refuse(ErrRecordCorrupt, "the outcome of a record differs from its digest")
	}
	return validateOutcome(r.Outcome)
}

func checkEvents(events []Event) error {
	var ofKind [EventImported + 1]int
	for i := range events {
		e := &events[i]
		if e.Kind < EventTakeover || e.Kind > EventImported || e.At.IsZero() || e.At.Nanosecond()%1000 != 0 || e.AttemptNumber < 0 ||
			(e.Outcome != nil) != (e.Kind == EventLateOutcome) {
			return invalid("event %d of a record is none that a store keeps", i+1)
		}
		if e.Outcome != nil && (e.Outcome.Size() > MaxEvidenceBytes || e.OutcomeSize < e.Outcome.Size()) {
			return invalid("event %d of a record has more of a late outcome than a store keeps", i+1)
		}
		if ofKind[e.Kind]++; ofKind[e.Kind] > MaxEvents {
			return invalid("a record has more than %d events of a kind", MaxEvents)
		}
	}
	return nil
}

// refuse says why an operation on the key of a record is not even looked at: it was sent by another
// epoch, something is wrong with it for this namespace (fault, nil if nothing is), or the namespace
// is sealed.
func (n *Namespace) refuse(old *Record, epoch int64, fault error, now time.Time) error {
	return firstError(n.checkPlaced(epoch), fault, n.checkSealed(old, now))
}

// checkPlaced refuses what was sent under another epoch.
func (n *Namespace) checkPlaced(epoch int64) error {
	switch own := n.Placement.Epoch; epoch {
	case own:
		return nil
	case 0:
		return Refuse(ErrWrongRegion, fmt.Sprintf(
			"namespace %q is placed among regions, and this server knows of none: serve the store with its topology", n.Name))
	default:
		return Refuse(ErrWrongRegion, fmt.Sprintf("namespace %q is placed by epoch %d here, and this was sent by epoch %d", n.Name, own, epoch))
	}
}

// stops reports whether nothing is granted.
func (m Move) stops() bool { return m.Phase == MoveFrozen || m.Phase == MoveSealed }

// checkSealed refuses what a sealed namespace does not answer: all but what was completed, as that
// never changes. Of any other key the copy here may be over, if the keys have arrived elsewhere and
// nobody could tell this store.
func (n *Namespace) checkSealed(old *Record, now time.Time) error {
	if n.Placement.Move.Phase != MoveSealed {
		return nil
	}
	if rec := live(old, now); rec != nil && rec.State == StateCompleted {
		return nil
	}
	return n.moving()
}

// moveHint is when it is worth to ask again while a namespace moves.
const moveHint = time.Second

func (n *Namespace) moving() error {
	return &Error{
		Sentinel: ErrNamespaceMoving, RetryAfter: moveHint,
		Detail: fmt.Sprintf("namespace %q is on its way to region %q; nothing was done; send it again", n.Name, n.Placement.Move.To),
	}
}
