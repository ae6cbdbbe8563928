package guard

import (
	"errors"
	"fmt"
)

// The errors, for errors.Is. Roll back on each of them, unless you know better. None has broken the transaction, and
// but for two none has changed anything: [Transition.Apply] says ErrInvalid after it has changed several rows, and Do may say
// ErrChanged after effect has run.
var (
	// ErrInvalid: an argument or a field of the guard is wrong, which the text names. Fix the caller.
	ErrInvalid = errors.New("guard: invalid argument")
	// ErrMismatch: the key was used for another request. A caller's bug, as for idemd.
	ErrMismatch = errors.New("guard: key was used for another request")
	// ErrNoOutcome: the row of the key, or of Once's entity, has no outcome. Either the function of an earlier Do
	// failed and its transaction was committed in spite of that, or this is a Do within the Do of
	// the same. Whether the effect is there is for a person to find out; then delete the row.
	ErrNoOutcome = errors.New("guard: entered without an outcome")
	// ErrConflict is what a [*Conflict] is.
	ErrConflict = errors.New("guard: row is in another state")
	// ErrAbsent: the table has no such row.
	ErrAbsent = errors.New("guard: no such row")
	// ErrStaleFence is what a [*StaleFence] is.
	ErrStaleFence = errors.New("guard: a later attempt has been here")
	// ErrChanged: another transaction, or effect, changed or deleted the row between two statements of the
	// guard. Run the whole transaction again.
	ErrChanged = errors.New("guard: row changed meanwhile; run the transaction again")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
