//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package pebblestore

import (
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lockFile locks the file, which it makes if it is not there.
func lockFile(name string) (io.Closer, error) { return vfs.Default.Lock(name) }
