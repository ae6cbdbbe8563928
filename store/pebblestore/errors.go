package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

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
	// ErrOlderFormat: the store was written by a version before the first release. Nothing
	// was touched.
	ErrOlderFormat = errors.New("store has an older format")
	// ErrBackup: the directory is a backup, and it was not said that it is restored, or it
	// cannot be. Nothing was touched. See [Options.Restored].
	ErrBackup = errors.New("directory is a backup")
	// ErrNoBackup: it was said that the directory is a restored backup, and it is none, or is none
	// any more.
	ErrNoBackup = errors.New("directory is no backup")
	// ErrNoStore: there is no store, and it was said that there must be one. Nothing was touched.
	ErrNoStore = errors.New("no store is there")
	// ErrLocked: another process, or another Store in this one, has the directory open.
	ErrLocked = errors.New("store is in use")
	// ErrDamaged: a file of the store is damaged, is missing or does not fit the others, so
	// that acknowledged operations may be missing. Restore it from a backup, and set a
	// recovery floor before anybody claims. It is also what a store stops with that finds
	// damage while it rearranges its files. A file that cannot be read or written for
	// another reason, such as a full disk, is not damaged.
	ErrDamaged = errors.New("store is damaged")
)

// damaged makes the error with which a damaged store is refused or stops.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w; restore the directory from a backup, then set a recovery floor before anybody claims (deploy/OPERATE.md, Backup and recovery)", ErrDamaged, fmt.Errorf(format, args...))
}

// openError makes the error for files that could not be read. What the operating system
// says is no damage, unless it misses a file that has to be there.
func openError(err error) error {
	var number syscall.Errno
	switch {
	case errors.Is(err, ErrLocked), errors.Is(err, ErrDamaged):
		return err
	case errors.As(err, &number) && number != syscall.ENOENT:
		return err
	}
	return damaged("%w", &pebbleError{text: err.Error(), causes: []error{err}})
}

// advise adds what to do about an error of the operating system.
func advise(err error) error {
	for _, known := range []struct {
		errors []error
		advice string
	}{
		{[]error{syscall.ENOSPC, syscall.EDQUOT}, "no space is left on the disk; make room and start again, nothing is lost"},
		{[]error{fs.ErrPermission, syscall.EROFS}, "no permission; the process must be able to read and write every file of the directory"},
		{[]error{syscall.EMFILE, syscall.ENFILE}, "too many open files; raise the limit (ulimit -n) and start again, nothing is lost"},
	} {
		if slices.ContainsFunc(known.errors, func(cause error) bool { return errors.Is(err, cause) }) {
			return fmt.Errorf("%s: %w", known.advice, err)
		}
	}
	return err
}

// pebbleError is an error of Pebble with its text made readable.
type pebbleError struct {
	text   string
	causes []error
}

// Error implements error. Pebble adds a line about damage that only its own code understands.
func (e *pebbleError) Error() string {
	return strings.ReplaceAll(e.text, "\n<corruption detail carrier>", "")
}

func (e *pebbleError) Unwrap() []error { return e.causes }

// gaveUp makes the error for a message with which Pebble gives up. It unwraps to the errors
// among the arguments, whatever verb they are printed with.
func gaveUp(format string, args ...any) error {
	err := &pebbleError{text: "pebble: " + fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if cause, ok := arg.(error); ok {
			err.causes = append(err.causes, cause)
		}
	}
	if slices.ContainsFunc(err.causes, pebble.IsCorruptionError) {
		return damaged("%w", err)
	}
	return err
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
