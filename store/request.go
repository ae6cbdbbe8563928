package store

import "time"

// ClaimRequest asks for the right to act on a key.
type ClaimRequest struct {
	Key Key
	// AttemptID names this execution of the intent: 1 to 64 opaque bytes, made once
	// per execution and reused whenever this Claim is sent again.
	AttemptID   string
	Fingerprint Fingerprint
	// Lease is how long the right to act should last. Zero takes the namespace's.
	Lease time.Duration
	// Hold tightens the namespace's lapse policy to [Hold] for this attempt.
	Hold bool
	// IntentTime is when the intent was first made, the same on every repeat. Zero
	// means not known. With it, a repeat that comes after retention is refused
	// (KEY_EXPIRED) instead of being taken for new.
	IntentTime time.Time
	// Wait is how long to wait for a running attempt of another caller to settle.
	// Zero answers at once. The context's deadline bounds it too.
	Wait time.Duration
	// Epoch is that of the placement by which this store was found to be the key's home; zero
	// where there are no regions. See [Placement].
	Epoch int64
}

// ClaimAnswer is what a Claim gets. Exactly one of the pointers is set.
type ClaimAnswer struct {
	Granted    *Granted
	InProgress *InProgress
	Completed  *Completed
	Unresolved *Unresolved
	// FingerprintIncomparable says that the request's fingerprint and the live
	// record's were made by two algorithms, so that it could not be checked that the
	// request is the same. Never set for a new or released key.
	FingerprintIncomparable bool
	// Served says who answered.
	Served Served
}

// HeldLonger returns the answer with a grant, if it has one, whose request was held for so much longer
// before the store got it. Answers may be shared, so the grant is a copy.
func (a ClaimAnswer) HeldLonger(by time.Duration) ClaimAnswer {
	if a.Granted == nil || by == 0 {
		return a
	}
	granted := *a.Granted
	granted.HeldFor += by
	a.Granted = &granted
	return a
}

// Served says who answered, where there are regions. Stores leave it empty.
type Served struct {
	Home      string // the region in which the key lives
	Forwarded bool   // by the server that was asked, to the home
	Epoch     int64  // of the placement
}

// Granted is the right to act.
type Granted struct {
	Fence         int64
	AttemptNumber int
	// Unsettled says that an earlier attempt may have acted: check, then act.
	Unsettled bool
	// UnsettledSince is when the earliest attempt was granted that may have acted, and of which
	// nobody has said what became of it: how old a key that it left elsewhere can be. Zero
	// unless Unsettled; [LongAgo] if it is not known. By the clock of the store that granted
	// it, which may have been another region's.
	UnsettledSince time.Time
	// PreviousFence is the fence of the attempt before this one; zero if there was none.
	PreviousFence int64
	GrantedAt     time.Time
	// LeaseExpiresAt is by the store's clock. A holder counts LeaseRemaining from
	// the instant it sent the request, and adds HeldFor: its own clock is never
	// compared with the store's.
	LeaseExpiresAt time.Time
	LeaseRemaining time.Duration
	// HeldFor is how long the request was in a server's or a [Waiter]'s hands before the
	// decision.
	HeldFor time.Duration
}

// InProgress says that another attempt holds the key.
type InProgress struct {
	LeaseExpiresAt time.Time
	LeaseRemaining time.Duration
	// RetryAfter is when asking again is worth it.
	RetryAfter time.Duration
}

// Completed gives the stored outcome back.
type Completed struct {
	Outcome     *Outcome // read only: it may be shared
	Fence       int64
	CompletedAt time.Time
	ExpiresAt   time.Time
	Age         time.Duration // since completion
	Retention   time.Duration
}

// Unresolved says that an attempt lapsed under [Hold]: what it did must be settled
// by its holder or an operator before anybody may act.
type Unresolved struct {
	Fence    int64
	LapsedAt time.Time
}

// RenewRequest extends the lease of the attempt that holds the key.
type RenewRequest struct {
	Key       Key
	AttemptID string
	Fence     int64
	// Lease is how long the right to act should last from now. Zero takes the
	// namespace's. A lease is never shortened.
	Lease time.Duration
	Epoch int64 // as in ClaimRequest
}

// RenewAnswer is the lease after a Renew; see [Granted] for its fields.
type RenewAnswer struct {
	LeaseExpiresAt time.Time
	LeaseRemaining time.Duration
	HeldFor        time.Duration
	Served         Served
}

// CompleteRequest stores the outcome of an attempt.
type CompleteRequest struct {
	Key       Key
	AttemptID string
	Fence     int64
	Outcome   *Outcome // never nil; not changed by the store, and not by the caller afterwards
	Epoch     int64    // as in ClaimRequest
}

// CompleteAnswer says until when the outcome answers repeats.
type CompleteAnswer struct {
	CompletedAt time.Time
	ExpiresAt   time.Time
	Served      Served
}

// ReleaseRequest gives the key up without an outcome.
type ReleaseRequest struct {
	Key       Key
	AttemptID string
	Fence     int64
	Effect    Effect
	Epoch     int64 // as in ClaimRequest
}

// ReleaseAnswer says what became of the key.
type ReleaseAnswer struct {
	// State is StateReleased, or StateInProgress if the key is lapsed now.
	State  State
	Served Served
}

// LookupRequest asks where a key stands, and changes nothing.
type LookupRequest struct {
	Key Key
	// Fingerprint must equal the record's for the outcome to be shown.
	Fingerprint Fingerprint
	Epoch       int64 // as in ClaimRequest
}

// LookupAnswer is where a key stands. Lapsed and LeaseExpiresAt are what a Claim of another attempt goes
// by: a lease that the store may have forgotten counts. An attempt knows its own lease from its grant.
type LookupAnswer struct {
	State          State
	Lapsed         bool
	Unsettled      bool
	LapsePolicy    LapsePolicy
	Fence          int64
	AttemptNumber  int
	GrantedAt      time.Time
	LeaseExpiresAt time.Time
	EndedAt        time.Time // zero while in progress
	ExpiresAt      time.Time // zero: never
	// Outcome is set for a completed key if the fingerprints are equal;
	// OutcomeWithheld says that there is one but they are not.
	Outcome         *Outcome
	OutcomeWithheld bool
	Served          Served
}

// ListRequest asks for records of a namespace, in an order of the store's.
type ListRequest struct {
	Namespace string
	Filter    Filter
	// PageSize is at most 1000; zero means 100. PageToken is the NextPageToken of
	// the page before.
	PageSize  int
	PageToken string
}

// Filter chooses records. The zero Filter chooses every live record.
type Filter struct {
	State  State  // zero: any
	Lapsed bool   // only those that are lapsed
	Scope  string // only those of this scope; empty: any
	Entity string // only those of this entity; empty: any
}

// Matches reports whether the filter chooses the record at now.
func (f Filter) Matches(rec *Record, now time.Time) bool {
	return !rec.Expired(now) && (f.State == 0 || f.State == rec.State) && (!f.Lapsed || rec.Lapsed(now)) &&
		(f.Scope == "" || f.Scope == rec.Key.Scope) && (f.Entity == "" || f.Entity == rec.Key.Entity)
}

// RecordPage is one page of records, without their outcomes. It may have fewer than asked
// for, or none, and still have a next page. NextPageToken is empty on the last, and
// printable ASCII otherwise. Now is the store's clock when
// the page was read. A record that changes while a listing goes on may be listed
// twice or not at all.
type RecordPage struct {
	Records       []*Record
	NextPageToken string
	Now           time.Time
	// Missing says what the page does not have, because it could not be read: the records of
	// which region, and why. Empty: nothing is missing.
	Missing string
}

// Inspection is everything a store knows about one key.
type Inspection struct {
	Record *Record
	Events []Event // oldest first
	Now    time.Time
}

// ResolveRequest settles a lapsed key: Outcome is recorded, or, if it is nil,
// nothing happened and the key may be claimed afresh.
type ResolveRequest struct {
	Key      Key
	Fence    int64 // the record's, as the operator has seen it; see ForceReleaseRequest
	AnyFence bool
	Outcome  *Outcome
	Actor    string
	Reason   string // 1 to 1024 bytes
	Epoch    int64  // as in ClaimRequest
}

// ForceReleaseRequest ends the attempt that holds a key. The key is lapsed
// afterwards, with takeover allowed.
type ForceReleaseRequest struct {
	Key Key
	// Fence is that of the attempt to end, as the operator has seen it. If it is not the
	// record's any more, nothing is done: sent again, this cannot end the next holder's
	// attempt. AnyFence, with Fence zero, ends whichever attempt holds the key.
	Fence    int64
	AnyFence bool
	Actor    string
	Reason   string // 1 to 1024 bytes
	Epoch    int64  // as in ClaimRequest
}
