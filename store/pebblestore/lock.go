package pebblestore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lockDir takes the lock that one open store has on its directory. The file system's own
// lock does not do on disk: on Unix a process loses it as soon as it opens and closes the
// file in any other way, to copy the directory for example.
func lockDir(files vfs.FS, name string) (io.Closer, error) {
	if onDisk(files) {
		lock, err := lockFile(name)
		return lock, lockError(err)
	}
	lock, err := files.Lock(name)
	return lock, lockError(err)
}

// onDisk says whether the files are the operating system's.
func onDisk(files vfs.FS) bool { return vfs.Root(files) == vfs.Default }

// lockError tells a lock that somebody has from one that cannot be taken.
func lockError(err error) error {
	var (
		path   *fs.PathError
		number syscall.Errno
	)
	switch {
	case err == nil, errors.As(err, &path):
		return err
	case errors.As(err, &number) && number != syscall.EAGAIN && number != syscall.EACCES:
		return fmt.Errorf("lock the directory: %w", err)
	}
	return fmt.Errorf("%w: it is open already, in this process or another", ErrLocked)
}
