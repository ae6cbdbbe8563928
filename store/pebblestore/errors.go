package pebblestore

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// Why Open refuses a directory. The error's text says what was found and what to do.
var (
	// ErrForeignDir: the directory holds files that are not this store's. Nothing was
	// touched.
	ErrForeignDir = errors.New("directory holds something else")
	// ErrNewerFormat: the store was written by a newer version. Nothing was touched.
	ErrNewerFormat = errors.New("store has a newer format")
	// ErrLocked: another process, or another Store in this one, has the directory open.
	ErrLocked = errors.New("store is in use")
	// ErrDamaged: the store is damaged so that acknowledged operations may be missing.
	// Restore it from a backup, and set a recovery floor before anybody claims.
	ErrDamaged = errors.New("store is damaged")
)

// damaged makes the error with which Open refuses a damaged store.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w; restore the directory from a backup, then set a recovery floor before anybody claims (README, Backups)", ErrDamaged, fmt.Errorf(format, args...))
}

// corrupt makes the refusal for a key whose stored record, event or place in the files is
// damaged.
func corrupt(cause error) error {
	return &store.Error{
		Sentinel: store.ErrRecordCorrupt,
		Detail:   "nothing was changed or granted; an operator must restore the store",
		Cause:    cause,
	}
}

// readError makes the refusal for an error of Pebble while reading a key. It is never
// taken for "the key is absent".
func readError(err error) error {
	if pebble.IsCorruptionError(err) {
		return corrupt(err)
	}
	return unavailable(err)
}

func unavailable(cause error) error {
	return &store.Error{
		Sentinel: store.ErrUnavailable,
		Detail:   "send it again with the same attempt id; it may have taken effect",
		Cause:    cause,
	}
}

var errClosed = &store.Error{Sentinel: store.ErrUnavailable, Detail: "the store is closed"}
