package pebblestore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A log that was written ahead ends in zeros, not where its file ends.
func TestPreparedLogsSurviveACrash(t *testing.T) {
	for _, percent := range []int{0, 50, 100} {
		fs := vfs.NewCrashableMem()
		opts := testOptions(fs)
		opts.SpareLogBytes = 100_000
		opts.MemTableBytes = 64 << 10
		random := rand.New(rand.NewPCG(1, uint64(percent)))
		claimed := 0
		for round := range 5 {
			s := mustOpen(t, opts)
			for i := range claimed {
				if answer, err := s.Claim(t.Context(), testClaim(fmt.Sprint(i), "b")); err != nil || answer.InProgress == nil {
					t.Fatalf("%d %% kept, round %d: claim of key %d: %+v, %v; want in progress", percent, round, i, answer, err)
				}
			}
			for range random.IntN(600) {
				mustClaim(t, s, fmt.Sprint(claimed), "a")
				claimed++
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random})
			mustClose(t, s)
			fs, opts.FS = crashed, crashed
		}
	}
}

func TestNewLogIsTheSpareFile(t *testing.T) {
	fs := vfs.NewCrashableMem()
	opts := testOptions(fs)
	opts.SpareLogBytes = 100_001
	s := mustOpen(t, opts)
	mustClaim(t, s, "k", "a")
	logs := 0
	for name, content := range snapshot(t, fs, "data") {
		if strings.HasSuffix(name, ".log") {
			logs++
			if int64(len(content)) != opts.SpareLogBytes {
				t.Errorf("log %s has %d bytes, want the %d of a spare file", name, len(content), opts.SpareLogBytes)
			}
		}
	}
	if logs == 0 {
		t.Error("there is no log")
	}
}

func TestStoreWorksWithoutSpareFiles(t *testing.T) {
	full := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, fileSpare) && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return errors.New("disk full")
		}
		return nil
	})
	opts := testOptions(errorfs.Wrap(vfs.NewCrashableMem(), full))
	opts.SpareLogBytes = 100_000
	s := mustOpen(t, opts)
	mustClaim(t, s, "k", "a")
	mustClose(t, s)
}
