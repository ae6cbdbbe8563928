package pebblestore_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// onDisk opens a store in a directory of a real file system. If it stops, so does the test.
func onDisk(t *testing.T, dir string) *pebblestore.Store {
	t.Helper()
	opts := openOptions(vfs.Default, storetest.NewClock(), newFatals())
	opts.MemTableBytes, opts.SpareLogBytes = 1<<20, 0 // none, which would come and go while the disk is filled
	opts.Fatal = func(err error) {
		fmt.Printf("the store has stopped: %v\n", err)
		os.Exit(1)
	}
	s, err := pebblestore.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// occupy fills a disk up to what is to be left, and returns what gives the room back.
func occupy(t *testing.T, disk string, leave uint64) func() {
	t.Helper()
	usage, err := vfs.Default.GetDiskUsage(disk)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(disk, "others")
	if err := os.WriteFile(name, make([]byte, usage.AvailBytes-leave), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// checkNoBackup checks what became of a backup that was refused for lack of room: nothing, and the
// store goes on.
func checkNoBackup(t *testing.T, s *pebblestore.Store, dir string, err error) {
	t.Helper()
	for _, want := range []string{"free", "needed", "nothing was done"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a backup without room says %v, which lacks %q", err, want)
		}
	}
	if names, _ := os.ReadDir(filepath.Dir(dir)); len(names) != 0 {
		t.Errorf("a backup that was refused has left %v", names)
	}
	if _, err := s.Lookup(t.Context(), store.LookupRequest{Key: fillKey(0)}); err != nil {
		t.Errorf("after a backup that was refused: %v", err)
	}
	mustAnswer(t, s, store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: "after"}, AttemptID: "one"})
}

// A backup on the store's own disk takes little of it, but what it takes would stop a store whose
// disk has not even that.
func TestBackupOnAFullDisk(t *testing.T) {
	if !withOwnMounts(t) {
		return
	}
	disk := smallDisk(t, "32m")
	backups := filepath.Join(disk, "backups")
	if err := os.Mkdir(backups, 0o700); err != nil {
		t.Fatal(err)
	}
	s := onDisk(t, filepath.Join(disk, "data"))
	defer mustClose(t, s)
	fillOne(t, s, 0) // too little for Pebble to write a table by itself meanwhile
	makeRoom := occupy(t, disk, 64<<10)
	dir := filepath.Join(backups, "one")
	_, err := s.Backup(t.Context(), dir)
	checkNoBackup(t, s, dir, err)
	makeRoom()
	if _, err := s.Backup(t.Context(), dir); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// On another disk there must be room for all of it. That is found out before anything is copied.
func TestBackupOnAnotherDiskThatIsSmall(t *testing.T) {
	if !withOwnMounts(t) {
		return
	}
	backups := smallDisk(t, "4m")
	s := onDisk(t, filepath.Join(t.TempDir(), "data"))
	defer mustClose(t, s)
	for i := range 60 {
		fillOne(t, s, i)
	}
	dir := filepath.Join(backups, "one")
	_, err := s.Backup(t.Context(), dir)
	checkNoBackup(t, s, dir, err)
	growDisk(t, backups, "64m")
	if _, err := s.Backup(t.Context(), dir); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// lowFS says that a disk is almost full.
type lowFS struct{ vfs.FS }

func (lowFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 32 << 10, TotalBytes: 1 << 30, UsedBytes: 1<<30 - 32<<10}, nil
}

// A backup for which there is no room touches nothing, not even the store's own files.
func TestBackupWithoutRoomTouchesNothing(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	c := newCrasher(disk, clock, 1, 0)
	s := mustOpen(t, lowFS{c.fs()}, clock)
	defer mustClose(t, s)
	mustAnswer(t, s, store.ClaimRequest{Key: testKeys[0], AttemptID: "one"})
	c.beforeEach(func(op errorfs.Op) error {
		// The store itself writes SPARE whenever a log has been begun, and MARK from time to time.
		if !strings.HasSuffix(op.Path, "SPARE") && !strings.HasSuffix(op.Path, "MARK") {
			t.Errorf("a backup without room does %v %s", op.Kind, op.Path)
		}
		return nil
	})
	_, err := s.Backup(t.Context(), backupDir)
	c.beforeEach(func(errorfs.Op) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "32 KiB are free") {
		t.Errorf("a backup without room: %v", err)
	}
}

// Whatever step of a backup fails for lack of room, it leaves nothing, and the store goes on.
func TestBackupThatFailsAnywhereLeavesNothing(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	c := newCrasher(disk, clock, 1, 0)
	fatal := newFatals()
	s, err := pebblestore.Open(dataDir, openOptions(c.fs(), clock, fatal))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	failed := 0
	for ; ; failed++ {
		steps := 0
		c.beforeEach(func(op errorfs.Op) error {
			ofBackup := strings.Contains(op.Path, "STAGING") || strings.HasPrefix(op.Path, backupDir)
			if !ofBackup || op.Kind == errorfs.OpRemove || op.Kind == errorfs.OpRemoveAll {
				return nil
			}
			if steps++; steps == failed+1 {
				return &fs.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
			}
			return nil
		})
		mustAnswer(t, s, store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprint(failed)}, AttemptID: "one"})
		_, err := s.Backup(t.Context(), backupDir)
		c.beforeEach(func(errorfs.Op) error { return nil })
		if errs := fatal.all(); len(errs) > 0 {
			t.Fatalf("step %d of a backup failed, and the store has stopped: %v", failed, errs)
		}
		if steps <= failed { // none failed
			if err != nil {
				t.Errorf("with room: %v", err)
			}
			break
		}
		if names, _ := disk.List("/backups"); err != nil && len(names) > 0 {
			t.Errorf("step %d failed (%v), and left %v", failed, err, names)
		}
		if err == nil { // it can do without, such as a link
			if err := disk.RemoveAll(backupDir); err != nil {
				t.Fatal(err)
			}
		}
		if names, _ := disk.List(dataDir); strings.Contains(fmt.Sprint(names), "STAGING") {
			t.Errorf("step %d failed (%v), and left %v", failed, err, names)
		}
	}
	if failed < 20 {
		t.Errorf("only %d steps failed: this tests too little", failed)
	}
}
