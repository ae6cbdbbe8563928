package store

import (
	"errors"
	"fmt"
	"time"
)

// The sentinels. Each says what the caller should do; storepb maps each to a status
// code and a reason, and back.
var (
	// The request is wrong. Fix the caller; sending it again cannot help.
	ErrInvalidArgument  = errors.New("invalid argument")
	ErrKeyRequired      = errors.New("a key is required")
	ErrOutcomeTooLarge  = errors.New("outcome is too large")
	ErrNamespaceUnknown = errors.New("namespace does not exist")
	ErrNamespaceExists  = errors.New("namespace exists with other settings")
	// ErrNamespaceChanged: UpdateNamespace found other settings than those that were read (see
	// [Namespace].IfUpdatedAt). Read them again.
	ErrNamespaceChanged = errors.New("namespace was changed meanwhile")

	// Nothing was done, and sending it again with the same credentials cannot help.

	// ErrUnauthenticated: who asks could not be established. Which credential is wrong, and
	// how, only the server's log says.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrPermissionDenied: whoever asks is known, and has not been given the role for it.
	ErrPermissionDenied = errors.New("permission denied")

	// ErrFingerprintMismatch: the key was used for another request. A caller's bug.
	ErrFingerprintMismatch = errors.New("key was used for another request")
	// ErrKeyExpired: the intent is older than its retention, so whether it was done
	// is no longer known here. Do not act.
	ErrKeyExpired = errors.New("intent is older than the retention")
	// ErrUnknownHistory: the store was restored and may have forgotten this key. Do
	// not act; find out elsewhere whether it was done. An operator lifts the recovery floor.
	ErrUnknownHistory = errors.New("history before the recovery floor is not known")
	// ErrAttemptTooLong: the attempt has used up its longest duration. Stop acting.
	ErrAttemptTooLong = errors.New("attempt has used up its longest duration")
	// ErrWrongRegion: the key's home is another region. Ask there.
	ErrWrongRegion = errors.New("key lives in another region")

	// ErrKeyNotFound: there is no live record of the key.
	ErrKeyNotFound = errors.New("no live record of the key")
	// ErrStaleFence: another attempt holds or held the key after this one. Stop acting.
	ErrStaleFence = errors.New("fence is not the current one")
	// ErrStaleAttempt: this attempt has ended. A new execution needs a new attempt id.
	ErrStaleAttempt = errors.New("attempt has ended")
	// ErrLeaseExpired: the lease ended before this Renew. Stop acting, then Complete
	// with what happened or Release as unknown.
	ErrLeaseExpired = errors.New("lease has expired")
	// ErrAlreadyCompleted: an outcome is stored and stays. Claim to read it.
	ErrAlreadyCompleted = errors.New("already completed")

	// ErrNotLapsed: Resolve settles only a lapsed key.
	ErrNotLapsed = errors.New("key is not lapsed")
	// ErrNotHeld: ForceRelease ends only a record that is in progress, lapsed or not.
	ErrNotHeld = errors.New("no attempt holds the key")

	// ErrNoFloor: LiftRecovery found no recovery floor that stands there. It may stand elsewhere.
	ErrNoFloor = errors.New("no recovery floor stands")
	// ErrNotConfirmed: LiftRecovery lacks the operator's word that what may go wrong will not.
	ErrNotConfirmed = errors.New("not confirmed")

	// A Store answers these three as values; they are refusals of whoever claims for
	// others, such as package client, which has nothing to give back then.

	// ErrKeyInProgress: another attempt holds the key. Send the same request again later.
	ErrKeyInProgress = errors.New("another attempt holds the key")
	// ErrKeyUnresolved: an attempt lapsed and the key is held. Its holder or an operator
	// settles it; nobody acts before.
	ErrKeyUnresolved = errors.New("key is held until somebody settles it")
	// ErrOutcomeOmitted: it was carried out, but the answer is not stored or cannot be
	// read. Find it out elsewhere; never do it again.
	ErrOutcomeOmitted = errors.New("carried out, without a stored answer")

	// ErrUnavailable: the store cannot answer now; the operation may have taken
	// effect. Send it again with the same attempt id. Never act on it.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrHomeUnreachable: as ErrUnavailable, because the home region is out of reach.
	ErrHomeUnreachable = errors.New("home region is unreachable")
	// ErrNoHome: nothing was done: no region serves the key for now. Its home's store may not know what it
	// was used for, or the regions do not agree which one that is. Send it again. It is an ErrUnavailable.
	ErrNoHome = fmt.Errorf("%w: no home", ErrUnavailable)
	// ErrNamespaceMoving: nothing was done: the namespace is on its way to another region. Send
	// it again.
	ErrNamespaceMoving = errors.New("namespace is moving")
	// ErrOverloaded: nothing was done. Send it again later.
	ErrOverloaded = errors.New("overloaded")
	// ErrQuota: nothing was done: the namespace used up its share. Send it again later.
	ErrQuota = errors.New("quota of the namespace is used up")
	// ErrRecordCorrupt: the stored record is damaged. Nothing was changed or granted.
	ErrRecordCorrupt = errors.New("stored record is damaged")
	// ErrInternal: a fault in idemd itself. Treat it as ErrUnavailable.
	ErrInternal = errors.New("internal error")
)

// Error is a refusal: a sentinel, public text and, where known, a hint and a cause.
type Error struct {
	// Sentinel is one of the errors of this package.
	Sentinel error
	// Detail is for the caller: what was wrong, what is allowed, what to do. It holds no
	// outcome, and a key only if the caller sent it.
	Detail string
	// RetryAfter, if positive, says when sending it again is worth it.
	RetryAfter time.Duration
	// Cause is for the log of this process and never crosses the wire.
	Cause error
}

// Error returns the public text.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Sentinel.Error()
	}
	return e.Sentinel.Error() + ": " + e.Detail
}

// Unwrap lets errors.Is and errors.As see the sentinel and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Sentinel}
	}
	return []error{e.Sentinel, e.Cause}
}

// Refuse makes an [*Error] without a hint.
func Refuse(sentinel error, detail string) *Error {
	return &Error{Sentinel: sentinel, Detail: detail}
}

// KeyNotFound is the refusal for a key that has no live record.
func KeyNotFound() *Error {
	return Refuse(ErrKeyNotFound, "it was never claimed, or its retention has ended")
}

// NamespaceUnknown is the refusal for a namespace that does not exist.
func NamespaceUnknown(name string) *Error {
	return Refuse(ErrNamespaceUnknown, fmt.Sprintf("create namespace %q first; if it was there before, create nothing: you may not be allowed to use it, or the store is lost or another one, as /healthz may say", name))
}
