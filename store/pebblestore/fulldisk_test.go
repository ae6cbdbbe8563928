package pebblestore

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// What was acknowledged has to be written to a table when a store is opened after a crash.
// If the disk is full, Open says so instead of trying for ever.
func TestOpenOnAFullDisk(t *testing.T) {
	fs := vfs.NewCrashableMem()
	mustClaim(t, mustOpen(t, testOptions(fs)), "k", "a")
	crashed, later := fs.CrashClone(vfs.CrashCloneCfg{}), fs.CrashClone(vfs.CrashCloneCfg{})

	full := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	_, err := Open("data", testOptions(errorfs.Wrap(crashed, full)))
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrDamaged) {
		t.Fatalf("got %v, want that no space is left, and nothing about damage", err)
	}
	s := mustOpen(t, testOptions(later))
	if answer, err := s.Claim(t.Context(), testClaim("k", "b")); err != nil || answer.InProgress == nil {
		t.Errorf("with room again: got %+v, %v; want in progress", answer, err)
	}
}
