package pebblestore_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// aheadStore returns a store whose clock is ahead of the wall: that was ahead when it started, and
// was put right.
func aheadStore(t *testing.T, by time.Duration) (*pebblestore.Store, *storetest.Clock, *vfs.MemFS) {
	t.Helper()
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	clock.StepWall(by)
	s := mustOpen(t, disk, clock)
	clock.Advance(time.Second)
	clock.StepWall(-by)
	clock.Advance(time.Minute)
	return s, clock, disk
}

// grantOf claims a key and returns the fence.
func grantOf(t *testing.T, s *pebblestore.Store, attempt string) int64 {
	t.Helper()
	answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: clockKeys[0], AttemptID: attempt, Lease: time.Second})
	if err != nil || answer.Granted == nil {
		t.Fatalf("claim of %s: %+v, %v", attempt, answer, err)
	}
	return answer.Granted.Fence
}

// A store whose clock was ahead of the wall goes on ahead of it after a restore on a machine whose
// clock is right: fences are above those that it has given out and forgotten, and the floor is after
// all that it has taken.
func TestRestoreOfAStoreThatWasAhead(t *testing.T) {
	for _, by := range []time.Duration{-10 * time.Minute, 0, time.Second, 10 * time.Minute} {
		for _, since := range []time.Duration{0, time.Second, 5 * time.Minute, time.Hour} {
			t.Run(fmt.Sprintf("ahead by %v, lost %v after the backup", by, since), func(t *testing.T) {
				s, clock, disk := aheadStore(t, by)
				one := grantOf(t, s, "one")
				clock.Advance(2 * time.Second)
				at, made := backUp(t, s), clock.Wall()
				clock.Advance(since)
				two := grantOf(t, s, "two")
				clock.Advance(2 * time.Second)
				lost := storeNow(t, s)
				mustClose(t, s)
				opts := openOptions(disk, clock, newFatals())
				opts.Restored, opts.RestoredFrom = true, at
				restored, err := pebblestore.Open(backupDir, opts)
				if err != nil {
					t.Fatal(err)
				}
				defer mustClose(t, restored)
				for name, ns := range namespacesOf(t, restored) {
					if ns.RecoveryFloor.Before(lost) || ns.RecoveryFloor.Sub(lost) > time.Second+10*time.Minute {
						t.Errorf("namespace %q has the floor %v, and the store showed %v when it was lost", name, ns.RecoveryFloor, lost)
					}
					// A ledger's times are those of machines.
					if until := ns.Recovery[0].CompleteUntil; until.After(made) || until.After(at) {
						t.Errorf("namespace %q is said to be complete until %v; the backup is of %v, and was made at %v", name, until, at, made)
					}
				}
				if now := storeNow(t, restored); now.Before(lost) {
					t.Errorf("the clock went back from %v to %v", lost, now)
				}
				clock.Advance(16 * time.Minute) // whoever may have a lease that was forgotten
				if three := grantOf(t, restored, "three"); three <= two || two <= one {
					t.Errorf("the fence after the restore is %v above that before, which is %v above that in the backup",
						time.Duration(three-two)*time.Microsecond, time.Duration(two-one)*time.Microsecond)
				}
			})
		}
	}
}

// What a store took as new because it was ahead, and has forgotten, is refused after the restore.
func TestRestoreRefusesWhatWasTakenAhead(t *testing.T) {
	s, clock, disk := aheadStore(t, 10*time.Minute)
	backUp(t, s)
	clock.Advance(time.Hour)
	claim := store.ClaimRequest{Key: clockKeys[0], AttemptID: "one", IntentTime: clock.Wall().Add(5 * time.Minute)}
	granted, err := s.Claim(t.Context(), claim)
	if err != nil || granted.Granted == nil {
		t.Fatalf("a claim of an intent between the two clocks: %+v, %v", granted, err)
	}
	mustAnswer(t, s, store.CompleteRequest{Key: claim.Key, AttemptID: "one", Fence: granted.Granted.Fence, Outcome: gateOutcome})
	mustClose(t, s)
	restored := mustRestore(t, disk, clock)
	defer mustClose(t, restored)
	for range 15 {
		clock.Advance(time.Minute)
		if answer, err := restored.Claim(t.Context(), claim); !errors.Is(err, store.ErrUnknownHistory) {
			t.Fatalf("at %v, of an intent of %v: %+v, %v", clock.Wall(), claim.IntentTime, answer, err)
		}
	}
}

// The clock of the machine is compared with the one that the backup was made by, and not with the
// store's.
func TestRestoreComparesMachinesClocks(t *testing.T) {
	s, clock, disk := aheadStore(t, 10*time.Minute)
	made := clock.Wall()
	backUp(t, s)
	mustClose(t, s)
	_, err := openBackup(disk, clockAt(made.Add(-time.Minute-time.Millisecond)), true)
	if want := "is behind the time of the backup, which was " + made.UTC().Format(time.RFC3339); !errors.Is(err, pebblestore.ErrBackup) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("a machine whose clock is behind: %v, want one that says %q", err, want)
	}
	mustClose(t, mustRestore(t, disk, clockAt(made.Add(-time.Minute))))
}

// Of a backup that does not say how far its store was ahead nobody knows how high its fences were.
func TestBackupWithoutTheMachinesClock(t *testing.T) {
	s, clock, disk := aheadStore(t, 0)
	backUp(t, s)
	mustClose(t, s)
	var text string
	for line := range strings.Lines(readAll(t, disk, backupDir+"/FORMAT")) {
		if !strings.HasPrefix(line, "wall ") && !strings.HasPrefix(line, "crc ") {
			text += line
		}
	}
	text += fmt.Sprintf("crc %08x\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
	f, err := disk.Create(backupDir+"/FORMAT", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openBackup(disk, clock, true); !errors.Is(err, pebblestore.ErrBackup) || !strings.Contains(fmt.Sprint(err), "how far") {
		t.Errorf("a backup without it: %v", err)
	}
}
