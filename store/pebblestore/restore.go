package pebblestore

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
)

// clockBehind is how far the machine's clock may be behind that of the machine on which a backup
// was made when it is restored.
const clockBehind = time.Minute

// BackupTime returns the time of the backup that the directory is, or zero if it is none. It
// changes nothing.
func BackupTime(files vfs.FS, dir string) (time.Time, error) {
	if files == nil {
		files = vfs.Default
	}
	text, err := readFile(files, files.PathJoin(dir, fileFormat))
	if err != nil {
		return time.Time{}, err
	}
	id, err := decodeIdentity(text)
	return id.backup, err
}

// checkRestored refuses a backup of which it is not said that it is restored. It has
// forgotten what was done since, and nobody can tell from it what that was.
func (o *opener) checkRestored() error {
	at := o.id.backup
	switch {
	case at.IsZero():
		return nil
	case !o.opts.Restored:
		return fmt.Errorf("%w: it holds what was acknowledged before %s, and has forgotten every key since; granting one of these again would do twice what was done. "+
			"Stop whoever serves the original, then say that this is restored (serve --restored-from %s): keys that may have been forgotten are refused until an operator settles them (deploy/OPERATE.md, Backup and recovery)",
			ErrBackup, rfc3339(at), rfc3339(at))
	case !o.opts.RestoredFrom.IsZero() && !o.opts.RestoredFrom.Equal(at):
		return fmt.Errorf("%w: it is of %s, and not of %s; is it the one that was meant?", ErrBackup, rfc3339(at), rfc3339(o.opts.RestoredFrom))
	case o.id.wall.IsZero():
		return fmt.Errorf("%w that does not say how far the store's clock was ahead of the machine's; fences and the recovery floor would be too low: restore it with the idemd that made it", ErrBackup)
	case o.opts.Source.Wall().Before(o.id.wall.Add(-clockBehind)):
		return fmt.Errorf("%w: the clock of this machine, %s, is behind the time of the backup, which was %s by the clock of its machine; set it first, because fences and the recovery floor come from it",
			ErrBackup, rfc3339(o.opts.Source.Wall()), rfc3339(o.id.wall))
	}
	return nil
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// recover begins the recovery of a restored backup: whatever was recorded until now may have
// been forgotten. The directory is a backup until that is on disk, so that a crash on the
// way leaves one that is refused, or in which this is done again.
func (o *opener) recover(l *loop, m *mark) error {
	now := o.clockAtLoss(l.newest)
	b := o.db.NewBatch()
	if err := o.raiseFloors(b, l, now); err != nil {
		return err
	}
	l.membership.Joined = false
	if err := putMembership(b, l.membership); err != nil {
		return err
	}
	l.newest = commitTime{seq: l.newest.seq + 1, now: now, until: now}
	putCommitTime(b, l.newest)
	if err := o.db.Apply(b, pebble.Sync); err != nil {
		return err
	}
	var err error
	if *m, err = advanceMark(o.fs, o.path(fileMark), *m, l.newest); err != nil {
		return err
	}
	o.opts.Logger.Warn("restored from a backup: keys that may have been forgotten are refused until an operator settles them",
		"backup", o.id.backup, "recovery_floor", now)
	o.id.backup, o.id.wall = time.Time{}, time.Time{}
	return putIdentity(o.fs, o.dir, o.id)
}

// clockAtLoss is at least what the store's clock showed when the store was lost, which is not later
// than now. It was no further ahead of the machine's than at the backup, as it only ever nears that,
// unless that was put back in between. From here the clock goes on.
func (o *opener) clockAtLoss(newest commitTime) time.Time {
	now := resumeClock(o.opts, newest).Now()
	if ahead := o.opts.Source.Wall().Add(o.id.ahead()).UTC().Round(0).Truncate(time.Microsecond); ahead.After(now) {
		return ahead
	}
	return now
}

// raiseFloors sets the recovery floor of every namespace.
func (o *opener) raiseFloors(b *pebble.Batch, l *loop, now time.Time) error {
	var errs []error
	req := store.BeginRecoveryRequest{CompleteUntil: o.id.complete(), Actor: "idemd", Reason: "first start on a restored backup"}
	for name, ns := range l.namespaces {
		next := ns.BeginRecovery(req, now)
		l.namespaces[name] = &next
		errs = append(errs, putNamespace(b, &next))
	}
	return errors.Join(errs...)
}

// refuseRestored is the error of a directory that is no backup (any more), though it is said that
// one was restored. What it tells of a recovery may have been copied with it: it is not known to be
// that of this copy, so it never stands for one that is asked for.
func refuseRestored(l *loop) error {
	steps := l.namespaces[store.DefaultNamespace].Recovery
	for i := len(steps) - 1; i >= 0; i-- {
		if step := steps[i]; step.Kind == store.RecoveryBegun {
			return fmt.Errorf("%w any more: the recovery of the backup of %s began at %s. Start without --restored-from, which is for one start; "+
				"but if another copy was put in its place since, begin the recovery of that first (idemd recovery begin --data-dir), before anybody claims",
				ErrNoBackup, rfc3339(step.CompleteUntil), rfc3339(step.At))
		}
	}
	return fmt.Errorf("%w, though it is said that one was restored; if it was restored in another way, begin the recovery (idemd recovery begin --data-dir) before anybody claims, and start without --restored-from", ErrNoBackup)
}

// removeLeftovers removes what a backup that was interrupted has left.
func (o *opener) removeLeftovers() error {
	return errors.Join(o.fs.RemoveAll(o.path(dirStaging)), o.fs.RemoveAll(o.path(fileUnfinished)))
}
