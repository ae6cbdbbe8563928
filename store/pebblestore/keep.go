package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// leaving begins the name of a backup that is being removed: whoever copies it meanwhile finds that
// it has gone, and takes no part of it for the whole.
const leaving = ".removing-"

// KeepBackups removes this store's backups beside the one in dir, the oldest first, until there are
// so many with it, and returns their names. What is not finished, is no backup, is of another store
// or was made since stays.
func (s *Store) KeepBackups(ctx context.Context, dir string, keep int) ([]string, error) {
	if keep < 1 {
		return nil, errors.New("keep backups: at least one is kept")
	}
	return past(s, func() (removed []string, err error) {
		s.backups.Lock()
		defer s.backups.Unlock()
		root := s.opts.FS.PathDir(dir)
		names, err := s.surplus(root, dir, keep)
		if err != nil {
			return nil, fmt.Errorf("look for old backups: %w", err)
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return removed, err
			}
			if err := s.removeBackup(root, name); err != nil {
				return removed, fmt.Errorf("remove the backup %s: %w", s.opts.FS.PathJoin(root, name), err)
			}
			removed = append(removed, strings.TrimPrefix(name, leaving))
		}
		return removed, nil
	})
}

// surplus are the names of the backups to remove: of removals that were interrupted, and of all
// before the one in dir but the newest.
func (s *Store) surplus(root, dir string, keep int) (leftovers []string, err error) {
	newest, err := s.backupIn(dir)
	if err != nil {
		return nil, err
	}
	names, err := s.opts.FS.List(root)
	if err != nil {
		return nil, err
	}
	times := map[string]time.Time{}
	var older []string
	for _, name := range names {
		at, err := s.backupIn(s.opts.FS.PathJoin(root, name))
		switch {
		case err != nil || at.IsZero(): // whatever it is, it is nothing to be removed
		case strings.HasPrefix(name, leaving):
			leftovers = append(leftovers, name)
		case at.Before(newest):
			older, times[name] = append(older, name), at
		}
	}
	slices.SortFunc(older, func(a, b string) int { return times[a].Compare(times[b]) })
	return append(leftovers, older[:max(0, len(older)-(keep-1))]...), nil
}

// backupIn is the time of the backup of this store that a directory is, or zero if it is none, or a
// link to elsewhere.
func (s *Store) backupIn(dir string) (time.Time, error) {
	if onDisk(s.opts.FS) {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			return time.Time{}, err
		}
	}
	text, err := readFile(s.opts.FS, s.opts.FS.PathJoin(dir, fileFormat))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	id, err := decodeIdentity(text)
	if err != nil || id.id != s.id.id {
		return time.Time{}, err
	}
	return id.backup, nil
}

// removeBackup removes a backup that nobody has open. What says that it is one goes last, so that a
// removal that was interrupted is taken up again.
func (s *Store) removeBackup(root, name string) error {
	files := s.opts.FS
	dir, gone := files.PathJoin(root, name), files.PathJoin(root, leaving+strings.TrimPrefix(name, leaving))
	lock, err := lockDir(files, files.PathJoin(dir, fileLock))
	if err != nil {
		return err
	}
	defer lock.Close()
	if at, err := s.backupIn(dir); err != nil || at.IsZero() { // it was opened as the store meanwhile
		return err
	}
	if dir != gone {
		if err := files.Rename(dir, gone); err != nil {
			return err
		}
		if err := syncDir(files, root); err != nil {
			return err
		}
	}
	names, err := files.List(gone)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == fileFormat {
			continue
		}
		if err := files.RemoveAll(files.PathJoin(gone, name)); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(files, gone), files.RemoveAll(gone), syncDir(files, root))
}
