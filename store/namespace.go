package store

import (
	"cmp"
	"fmt"
	"reflect"
	"time"
)

// DefaultNamespace exists in every store.
const DefaultNamespace = "default"

// Tier bounds a namespace's retention and sets the width of its buckets. It is fixed
// when the namespace is created.
type Tier uint8

// The tiers, by the longest retention they allow.
const (
	TierHour  Tier = iota + 1 // up to 1 hour
	TierDay                   // up to 24 hours
	TierWeek                  // up to 7 days
	TierMonth                 // up to 35 days
)

// Tiers lists all tiers, shortest first.
var Tiers = [...]Tier{TierHour, TierDay, TierWeek, TierMonth}

// MaxRetention is the longest retention in the tier.
func (t Tier) MaxRetention() time.Duration {
	switch t {
	case TierHour:
		return time.Hour
	case TierDay:
		return 24 * time.Hour
	case TierWeek:
		return 7 * 24 * time.Hour
	case TierMonth:
		return 35 * 24 * time.Hour
	}
	return 0
}

// BucketWidth is the width of the tier's buckets: a quarter of MaxRetention.
func (t Tier) BucketWidth() time.Duration { return t.MaxRetention() / 4 }

// MaxAttempt is the longest an attempt can go on in the tier: a quarter of MaxRetention.
// So a key is never older than width + max attempt + retention, which six buckets cover.
func (t Tier) MaxAttempt() time.Duration { return t.MaxRetention() / 4 }

// TierFor returns the shortest tier that allows the retention.
func TierFor(retention time.Duration) Tier {
	for _, t := range Tiers {
		if retention <= t.MaxRetention() {
			return t
		}
	}
	return TierMonth
}

// EntityRule says whether the keys of a namespace carry an entity.
type EntityRule uint8

// The entity rules.
const (
	EntityOptional EntityRule = iota
	EntityRequired
	EntityForbidden
)

// Namespace is a tenant's policy.
type Namespace struct {
	// Name matches [a-z0-9][a-z0-9-]{0,62}.
	Name string
	// Tier is fixed at creation. Zero then means the shortest that allows Retention.
	Tier Tier
	// Retention is how long an outcome answers repeats, from completion. Zero: 24 h, or
	// the tier's longest if that is less.
	Retention time.Duration
	// LapsePolicy is what happens after a lapse. Zero: Takeover.
	LapsePolicy LapsePolicy
	// Lease is what a Claim without a lease gets. Zero: 30 s, or MaxLease if that is
	// less. MaxLease is the longest a Claim or Renew may ask for. Zero: 15 min.
	Lease    time.Duration
	MaxLease time.Duration
	// MaxAttempt is the longest that renewals can stretch one attempt. Zero: 1 h, or a
	// quarter of the tier if that is less.
	MaxAttempt time.Duration
	// MaxOutcomeBytes limits [Outcome.Size], 1 KiB to 256 KiB. Zero: 256 KiB.
	MaxOutcomeBytes int
	// Entity says whether keys carry an entity.
	Entity EntityRule
	// RecoveryFloor, if set, is the instant before which the store may have forgotten
	// keys and what became of them (it was restored from a backup). Until an operator
	// clears it, Claims of keys that are unknown, or were released no later, are refused
	// with ErrUnknownHistory, unless their intent is known to be newer. An update can set or
	// raise it; it is taken off by LiftRecovery alone, which keeps who did it and why.
	RecoveryFloor time.Time

	// FloorForNew, which the default namespace alone has, is the recovery floor that
	// namespaces begin with that are created from now on.
	FloorForNew time.Time
	// Recovery is what was done about the floors, oldest first, the last MaxRecoverySteps. Both
	// are set by the store.
	Recovery []RecoveryStep

	// CreatedAt and UpdatedAt are set by the store.
	CreatedAt time.Time
	UpdatedAt time.Time
	// IfUpdatedAt, of an update alone, is the UpdatedAt of what the settings were made of. If the namespace was
	// changed since, that is ErrNamespaceChanged, unless it has these settings already. Zero: they
	// replace whatever there is.
	IfUpdatedAt time.Time
	// PastRetentions are kept by the store when Retention grows: records ended before
	// the change still expire by the old one. They go wherever the namespace goes. At most
	// MaxPastRetentions, shortest first, each in force for longer than those before it.
	PastRetentions []PastRetention
	// Placement says where the keys live. It is changed by PlaceNamespace alone.
	Placement Placement
	// SharedBy, which a store says and nobody sets, are the regions that have the namespace in common, with
	// its floors, where one database has several regions. Empty: it is one region's.
	SharedBy []string
}

// PastRetention is a retention that was in force until some instant.
type PastRetention struct {
	Retention time.Duration
	Until     time.Time
}

// MaxSkew is the largest skew that a namespace can have.
const MaxSkew = time.Minute

// Skew is how far an intent time may be off the store's clock.
func (n *Namespace) Skew() time.Duration { return min(MaxSkew, n.Retention/10) }

// WithDefaults returns n with every zero setting replaced by its default, and durations
// cut to the whole microseconds that records have.
func (n Namespace) WithDefaults() Namespace {
	if n.Tier == 0 {
		retention := n.Retention
		if retention == 0 {
			retention = DefaultRetention
		}
		n.Tier = TierFor(retention)
	}
	setDefault(&n.Retention, min(DefaultRetention, n.Tier.MaxRetention()))
	setDefault(&n.LapsePolicy, Takeover)
	setDefault(&n.MaxAttempt, min(DefaultMaxAttempt, n.Tier.MaxAttempt()))
	setDefault(&n.MaxLease, min(MaxLease, n.MaxAttempt))
	setDefault(&n.Lease, min(DefaultLease, n.MaxLease))
	setDefault(&n.MaxOutcomeBytes, MaxOutcomeBytes)
	for _, d := range [...]*time.Duration{&n.Retention, &n.MaxAttempt, &n.MaxLease, &n.Lease} {
		*d = d.Truncate(time.Microsecond)
	}
	return n
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Replace returns the namespace that an update from old to n makes at now. It keeps what
// an update cannot change, remembers a shorter retention that was in force, and refuses
// another tier, and any update while the namespace moves: the stores of a move must keep it alike.
func (n Namespace) Replace(old Namespace, now time.Time) (Namespace, error) {
	if old.Placement.Move.Phase != 0 {
		return Namespace{}, &Error{
			Sentinel: ErrNamespaceMoving, RetryAfter: moveHint,
			Detail: fmt.Sprintf("namespace %q is on its way to region %q, and its settings stay until that move has ended; nothing was done", old.Name, old.Placement.Move.To),
		}
	}
	if n.changedBefore(old) {
		return Namespace{}, Refuse(ErrNamespaceChanged, fmt.Sprintf("namespace %q was updated at %s, after it was read; nothing was done: read it again, and set what is to change of that",
			old.Name, old.UpdatedAt.UTC().Format(time.RFC3339Nano)))
	}
	if n.Tier != 0 && n.Tier != old.Tier {
		return Namespace{}, invalid("the tier of namespace %q is fixed; create another namespace", old.Name)
	}
	n.Tier, n.CreatedAt, n.Placement, n.SharedBy = old.Tier, old.CreatedAt, old.Placement, old.SharedBy
	n.UpdatedAt, n.IfUpdatedAt = old.updated(now), time.Time{}
	if n.RecoveryFloor.After(old.RecoveryFloor) {
		if err := n.CheckFloor(now); err != nil {
			return Namespace{}, err
		}
	}
	n.RecoveryFloor, n.FloorForNew, n.Recovery = later(old.RecoveryFloor, n.RecoveryFloor), old.FloorForNew, old.Recovery
	n = n.WithDefaults()
	n.PastRetentions = joinPast(nil, recentPast(old.PastRetentions, now))
	if n.Retention > old.Retention {
		n = n.WithPast(PastRetention{Retention: old.Retention, Until: now})
	}
	return n, n.Validate()
}

// WithPast returns the namespace with one more retention that was in force.
func (n Namespace) WithPast(past PastRetention) Namespace {
	n.PastRetentions = joinPast(n.PastRetentions, []PastRetention{past})
	return n
}

// changedBefore reports whether an update, which says what it was made of, comes after a change to other settings.
func (n Namespace) changedBefore(old Namespace) bool {
	if n.IfUpdatedAt.IsZero() || n.IfUpdatedAt.Equal(old.UpdatedAt) {
		return false
	}
	n.Tier = cmp.Or(n.Tier, old.Tier)
	return !old.SameSettings(n.WithDefaults())
}

// CheckFloor refuses a recovery floor that has not come: what is claimed before it would be refused as
// forgotten although it is known. Another region's clock may be ahead.
func (n *Namespace) CheckFloor(now time.Time) error {
	if n.RecoveryFloor.After(now.Add(MaxSkew)) {
		return invalid("a recovery floor at %s is in the future: it is %s here, and a store can have forgotten only what was before; give the present at most",
			n.RecoveryFloor.UTC().Format(time.RFC3339Nano), now.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// updated is the UpdatedAt of a change at now: that of no two is the same.
func (n *Namespace) updated(now time.Time) time.Time {
	return later(now, n.UpdatedAt.Add(time.Microsecond))
}

// SameSettings reports whether n and m differ only in what the store sets. The floor of n, a
// stored one, may have been raised since.
func (n Namespace) SameSettings(m Namespace) bool {
	if m.RecoveryFloor.After(n.RecoveryFloor) {
		return false
	}
	for _, ns := range [...]*Namespace{&n, &m} {
		ns.CreatedAt, ns.UpdatedAt, ns.IfUpdatedAt, ns.PastRetentions, ns.Placement = time.Time{}, time.Time{}, time.Time{}, nil, Placement{}
		ns.RecoveryFloor, ns.FloorForNew, ns.Recovery, ns.SharedBy = time.Time{}, time.Time{}, nil, nil
	}
	return reflect.DeepEqual(n, m)
}

// RetentionSince returns the shortest retention that can have applied to a record of
// an intent made at t or later.
func (n *Namespace) RetentionSince(t time.Time) time.Duration {
	retention := n.Retention
	for _, past := range n.PastRetentions {
		if !t.After(past.Until) {
			retention = min(retention, past.Retention)
		}
	}
	return retention
}
