//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package pebblestore

import (
	"io"
	"io/fs"
	"syscall"
)

// heldLock is a descriptor with a lock, which goes with the descriptor. It is not an
// [os.File], which would close when nobody refers to it any more: a store that has stopped
// keeps its lock until the process ends.
type heldLock int

// lockFile locks the file, which it makes if it is not there.
func lockFile(name string) (io.Closer, error) {
	fd, err := syscall.Open(name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	return heldLock(fd), nil
}

// Close gives the lock up.
func (l heldLock) Close() error { return syscall.Close(int(l)) }
