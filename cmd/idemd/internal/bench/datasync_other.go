//go:build !linux

package bench

import "os"

// datasync writes metadata too, where fdatasync cannot be had.
func datasync(file *os.File) error { return file.Sync() }
