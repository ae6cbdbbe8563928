package pebblestore

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func opens(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen }

func writes(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt
}

// failing makes operations on files of a kind fail. Once the test is over it holds back
// whatever comes: where Pebble has given up, it may go on trying until the process ends.
func failing(t *testing.T, file string, match func(errorfs.Op) bool, err error) errorfs.Injector {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return errorfs.InjectorFunc(func(op errorfs.Op) error {
		select {
		case <-over:
			select {}
		default:
		}
		if match(op) && strings.HasSuffix(strings.TrimRight(op.Path, "-0123456789"), file) {
			return &fs.PathError{Op: "use", Path: op.Path, Err: err}
		}
		return nil
	})
}

// What the operating system refuses is said as it is, with what to do about it, and is not
// called damage: then somebody would put back a backup for nothing.
func TestOpenTellsADiskThatRefusesFromDamage(t *testing.T) {
	tests := map[string]struct {
		file   string
		op     func(errorfs.Op) bool
		err    error
		advice string
	}{
		"no space for the manifest":       {"MANIFEST", writes, syscall.ENOSPC, "make room"},
		"no space for a table":            {".sst", writes, syscall.ENOSPC, "make room"},
		"quota of a log":                  {".log", func(op errorfs.Op) bool { return op.Kind == errorfs.OpCreate }, syscall.EDQUOT, "make room"},
		"MARK may not be read":            {fileMark, opens, syscall.EACCES, "no permission"},
		"FORMAT may not be read":          {fileFormat, opens, syscall.EACCES, "no permission"},
		"a table may not be read":         {".sst", opens, syscall.EPERM, "no permission"},
		"a log may not be read":           {".log", opens, syscall.EACCES, "no permission"},
		"read-only":                       {"MANIFEST", writes, syscall.EROFS, "no permission"},
		"too many open files, MARK":       {fileMark, opens, syscall.EMFILE, "ulimit"},
		"too many open files, table":      {".sst", opens, syscall.EMFILE, "ulimit"},
		"too many open files, log":        {".log", opens, syscall.ENFILE, "ulimit"},
		"too many open files, manifest":   {"MANIFEST", opens, syscall.EMFILE, "ulimit"},
		"a table cannot be read":          {".sst", func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileReadAt }, syscall.EIO, "input/output error"},
		"MARK cannot be read":             {fileMark, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileRead }, syscall.EIO, "input/output error"},
		"the directory may not be listed": {"data", func(op errorfs.Op) bool { return op.Kind == errorfs.OpList }, syscall.EACCES, "no permission"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			disk := crashedStore(t)
			inject := failing(t, tt.file, tt.op, tt.err)
			later := disk.CrashClone(vfs.CrashCloneCfg{})
			_, err := openInTime(t, testOptions(errorfs.Wrap(disk, inject)))
			if !errors.Is(err, tt.err) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.advice) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v; want %v with %q in one line, and nothing about damage", err, tt.err, tt.advice)
			}
			s := mustOpen(t, testOptions(later))
			if answer, err := s.Claim(t.Context(), testClaim("k", "b")); err != nil || answer.InProgress == nil {
				t.Errorf("when the disk is well: got %+v, %v; want in progress", answer, err)
			}
		})
	}
}

// crashedStore returns what a crash leaves of a store with a table and a log.
func crashedStore(t *testing.T) *vfs.MemFS {
	t.Helper()
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, testOptions(disk))
	mustClaim(t, s, "k", "a")
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClaim(t, s, "l", "a")
	return disk.CrashClone(vfs.CrashCloneCfg{})
}

// openInTime fails the test if Open does not return.
func openInTime(t *testing.T, opts Options) (*Store, error) {
	t.Helper()
	guard := time.AfterFunc(time.Minute, func() { panic(t.Name() + ": Open hangs") })
	defer guard.Stop()
	return Open("data", opts)
}

// A store cannot be created on a full disk. Open says so and returns.
func TestCreateOnAFullDisk(t *testing.T) {
	for _, file := range []string{".log", ".sst", "MANIFEST", fileMark, fileFormat + ".new"} {
		inject := failing(t, file, writes, syscall.ENOSPC)
		_, err := openInTime(t, testOptions(errorfs.Wrap(vfs.NewCrashableMem(), inject)))
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "make room") {
			t.Errorf("no space for %s: got %v; want that no space is left", file, err)
		}
	}
}

// Whoever has Pebble's own lock has the store.
func TestPebblesLockIsALock(t *testing.T) {
	disk := closedStore(t)
	lock, err := disk.Lock("data/db/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open("data", testOptions(disk)); !errors.Is(err, ErrLocked) || errors.Is(err, ErrDamaged) {
		t.Errorf("got %v, want that it is in use", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, testOptions(disk)))
}

// A disk that does not answer does not hold up Close for ever.
func TestCloseGivesUpOnADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		letGo := make(chan struct{})
		var toggle errorfs.Toggle
		toggle.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.HasSuffix(op.Path, ".log") && op.Kind != errorfs.OpFileWrite {
				<-letGo
			}
			return nil
		})
		s, err := Open("data", testOptions(errorfs.Wrap(vfs.NewCrashableMem(), &toggle)))
		if err != nil {
			t.Fatal(err)
		}
		toggle.On()
		begun := time.Now()
		if err := s.Close(); err == nil || !strings.Contains(err.Error(), "end the process") {
			t.Errorf("Close: %v, want that the disk does not answer", err)
		}
		if took := time.Since(begun); took != closeLimit {
			t.Errorf("Close took %v, want %v", took, closeLimit)
		}
		close(letGo)
	})
}
