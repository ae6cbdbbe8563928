//go:build unix

package server

import (
	"math"
	"syscall"
)

// openFiles is how many files this process may open. Go has raised it as far as it may.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64 // nobody has heard of that
	}
	return uint64(limit.Cur) //nolint:unconvert // elsewhere it is signed
}
