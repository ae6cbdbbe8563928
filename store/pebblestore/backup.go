package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// dirStaging, in the store's directory, is where a checkpoint is made: on the store's own
	// file system, so that its tables are linked and not copied.
	dirStaging = "STAGING"
	// fileUnfinished is in a backup that is being made. FORMAT, without which nothing opens a
	// directory, comes last.
	fileUnfinished = "UNFINISHED"
)

// Backup copies the store, while it serves, to a directory that does not exist yet, whose
// parent does, if there is room for it. It returns the instant of the backup: every operation that was acknowledged
// before it, by the store's clock, is in the backup. What it holds is on disk then. Open
// refuses it unless it is told that the store was restored; see [Options.Restored].
//
// Operations wait while the files are linked and the logs, which are short then, are copied.
func (s *Store) Backup(ctx context.Context, dir string) (time.Time, error) {
	return past(s, func() (time.Time, error) {
		s.backups.Lock()
		defer s.backups.Unlock()
		at, err := s.backup(ctx, dir)
		if err != nil {
			return time.Time{}, fmt.Errorf("back up to %s: %w", dir, advise(err))
		}
		return at, nil
	})
}

func (s *Store) backup(ctx context.Context, dir string) (time.Time, error) {
	if err := s.checkTarget(dir); err != nil {
		return time.Time{}, err
	}
	if err := s.checkRoom(); err != nil {
		return time.Time{}, err
	}
	at, wall, err := s.checkpoint(ctx)
	if err == nil {
		err = s.makeBackup(ctx, dir, at, wall)
	}
	_ = s.opts.FS.RemoveAll(s.path(dirStaging)) // Open does it again
	if err != nil {
		return time.Time{}, err
	}
	return at.now, nil
}

// checkTarget refuses where no backup can be made.
func (s *Store) checkTarget(dir string) error {
	files := s.opts.FS
	if onDisk(files) && !filepath.IsAbs(dir) {
		return errors.New("the directory must be an absolute path: the server's working directory is not the caller's")
	}
	if Inside(s.dir, dir) {
		return errors.New("the directory is inside of the store's own; choose one that survives the loss of that")
	}
	if _, err := files.Stat(dir); err == nil {
		return fmt.Errorf("%w; a backup is made in a directory of its own", fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := files.Stat(files.PathDir(dir)); err != nil {
		return fmt.Errorf("the directory above it: %w", err)
	}
	return nil
}

// Inside reports whether a path is dir or below it, by what the two say: links are not followed.
func Inside(dir, path string) bool {
	way, err := filepath.Rel(dir, filepath.Clean(path))
	return err == nil && way != ".." && !strings.HasPrefix(way, "../")
}

// checkpoint copies the database to the staging directory between two commits, and returns
// the newest that is in it, at the time of the backup, and what the machine's clock showed then.
func (s *Store) checkpoint(ctx context.Context) (at commitTime, wall time.Time, err error) {
	if err := s.opts.FS.RemoveAll(s.path(dirStaging)); err != nil {
		return commitTime{}, time.Time{}, err
	}
	if err := s.db.Flush(); err != nil { // so that the logs are short
		return commitTime{}, time.Time{}, err
	}
	err = s.do(ctx, classSettle, onNamespaces, 0, func(t *turn) error {
		// Pebble copies logs byte by byte while they may be written to: here nobody does, as
		// this is the loop, and no commit is on its way.
		at, wall = commitTime{seq: t.l.newest.seq, now: t.now}, s.clock.wallAt(t.now)
		return s.stage()
	})
	return at, wall, err
}

// stage makes the checkpoint. Pebble panics with the error if it cannot sync the directory; it
// holds no lock then, and nothing of the store's own is affected.
func (s *Store) stage() (err error) {
	defer func() {
		if p := recover(); p != nil {
			var bug runtime.Error
			cause, ok := p.(error)
			if !ok || errors.As(cause, &bug) {
				panic(p)
			}
			err = cause
		}
	}()
	return s.db.Checkpoint(s.path(dirStaging), pebble.WithFlushedWAL())
}

// makeBackup makes the directory of a backup, or leaves nothing of it.
func (s *Store) makeBackup(ctx context.Context, dir string, at commitTime, wall time.Time) error {
	if err := makeDir(s.opts.FS, dir); err != nil {
		return err // what is there, such as a link that leads nowhere, is somebody else's
	}
	err := s.fillBackup(ctx, dir, at, wall)
	if err != nil {
		_ = s.opts.FS.RemoveAll(dir)
	}
	return err
}

// fillBackup fills the directory of a backup out of the checkpoint.
func (s *Store) fillBackup(ctx context.Context, dir string, at commitTime, wall time.Time) error {
	files := s.opts.FS
	path := func(name string) string { return files.PathJoin(dir, name) }
	if err := writeFileSynced(files, path(fileUnfinished), nil); err != nil {
		return err
	}
	if err := syncDir(files, dir); err != nil {
		return err
	}
	if err := copyFiles(ctx, files, s.path(dirStaging), path(dirPebble), s.roomToGoOn()); err != nil {
		return err
	}
	if err := createMark(files, path(fileMark), mark{storeID: s.id.id, at: at}); err != nil {
		return err
	}
	id := s.id
	id.backup, id.wall = at.now, wall
	return errors.Join(putIdentity(files, dir, id), files.Remove(path(fileUnfinished)), syncDir(files, dir))
}

func (s *Store) path(name string) string { return s.opts.FS.PathJoin(s.dir, name) }
