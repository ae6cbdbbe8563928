package pebblestore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// olderDisk is a disk with a store of version 2, in which a key is in progress.
func olderDisk(t *testing.T, clock *storetest.Clock) *vfs.MemFS {
	t.Helper()
	disk := vfs.NewCrashableMem()
	withBackups(t, disk)
	s := mustOpen(t, disk, clock)
	newNamespaces(t, s)
	mustAnswer(t, s, inProgress)
	mustClose(t, s)
	setFormat(t, disk, dataDir, 2)
	return disk
}

var inProgress = store.ClaimRequest{Key: testKeys[0], AttemptID: "one"}

// wantInProgress checks that the key is there.
func wantInProgress(t *testing.T, s *pebblestore.Store) {
	t.Helper()
	answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: inProgress.Key, AttemptID: "two"})
	if err != nil || answer.InProgress == nil {
		t.Errorf("claim of another attempt: %+v, %v", answer, err)
	}
}

func wantFormat(t *testing.T, fs vfs.FS, dir, want string) {
	t.Helper()
	if text := readAll(t, fs, dir+"/FORMAT"); !strings.Contains(text, "\nformat "+want+"\n") {
		t.Errorf("want format %s in %s, there is\n%s", want, dir, text)
	}
}

// A store of the version before is opened, and is of this one before anything is written that the
// older release cannot read: that would take it for damage. So are the backups of it.
func TestStoreOfTheVersionBefore(t *testing.T) {
	clock := storetest.NewClock()
	disk := olderDisk(t, clock)
	s := mustOpen(t, disk, clock)
	wantFormat(t, disk.CrashClone(vfs.CrashCloneCfg{}), dataDir, "3")
	wantInProgress(t, s)
	backUp(t, s)
	wantFormat(t, disk, backupDir, "3")
	mustClose(t, s)
	mustClose(t, mustOpen(t, disk, clock))
	wantFormat(t, disk, dataDir, "3")
}

// A backup of the version before is restored as one of this one is.
func TestBackupOfTheVersionBefore(t *testing.T) {
	c := crashingBackup(t)
	setFormat(t, c.disk, backupDir, 2)
	if _, err := openBackup(c.disk, c.clock, false); !errors.Is(err, pebblestore.ErrBackup) {
		t.Errorf("not said to be restored: %v", err)
	}
	wantFormat(t, c.disk, backupDir, "2")
	mustClose(t, mustRestore(t, c.disk, c.clock))
	wantFormat(t, c.disk, backupDir, "3")
}

// A crash at any step of the first start leaves a store of the one version or the other, whole.
func TestCrashesDuringTheChangeOfVersion(t *testing.T) {
	clock := storetest.NewClock()
	c := newCrasher(olderDisk(t, clock), clock, 1, 1, 0, 50, 100)
	c.record(&history{})
	mustClose(t, mustOpen(t, c.fs(), clock))
	older, newer := 0, 0
	for _, crash := range c.take() {
		if strings.Contains(readAll(t, crash.fs, dataDir+"/FORMAT"), "\nformat 2\n") {
			older++
		} else {
			newer++
		}
		s := mustOpen(t, crash.fs, clock)
		wantFormat(t, crash.fs.CrashClone(vfs.CrashCloneCfg{}), dataDir, "3")
		wantInProgress(t, s)
		mustClose(t, s)
	}
	if older < 3 || newer < 3 {
		t.Errorf("%d crashes left the older version and %d the newer: this tests too little", older, newer)
	}
}
