package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// checkRoom refuses a backup for which the store's own disk clearly has no room: a store whose disk
// is full stops. Its tables are linked; what is in memory is written to one; logs, which are as long
// as when they are full, and the manifest are copied.
func (s *Store) checkRoom() error {
	m := s.db.Metrics()
	need := s.roomToGoOn() + m.MemTable.Size + m.WAL.PhysicalSize
	db := s.path(dirPebble)
	names, err := s.opts.FS.List(db)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "MANIFEST") {
			continue
		}
		size, err := fileSize(s.opts.FS, s.opts.FS.PathJoin(db, name))
		if err != nil {
			return err
		}
		need += size
	}
	return haveRoom(s.opts.FS, s.dir, need)
}

// roomToGoOn is what a store writes in the time of a backup.
func (s *Store) roomToGoOn() uint64 { return s.opts.MemTableBytes + uint64(s.opts.SpareLogBytes) }

// haveRoom refuses if a disk has less room than is needed, as far as that is known.
func haveRoom(files vfs.FS, dir string, need uint64) error {
	usage, err := files.GetDiskUsage(dir)
	if err != nil || usage.AvailBytes >= need { // a file system in memory does not know
		return nil
	}
	return fmt.Errorf("on the disk of %s %s are free, and about %s are needed; nothing was done; make room, for example by removing old backups",
		dir, inBytes(usage.AvailBytes), inBytes(need))
}

// inBytes is a size for people.
func inBytes(n uint64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// fileSize is the size of a file; zero of one that has gone meanwhile.
func fileSize(files vfs.FS, name string) (uint64, error) {
	info, err := files.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return uint64(info.Size()), nil
}

// copyFiles puts the files of a directory into a new one, by links where that is possible. What
// cannot be linked is copied, if there is room for all of it and as much as is to be left.
func copyFiles(ctx context.Context, files vfs.FS, from, to string, leave uint64) error {
	if err := makeDir(files, to); err != nil {
		return err
	}
	names, err := files.List(from)
	if err != nil {
		return err
	}
	var unlinked []string
	need := leave
	for _, name := range names {
		if files.Link(files.PathJoin(from, name), files.PathJoin(to, name)) == nil {
			continue
		}
		size, err := fileSize(files, files.PathJoin(from, name))
		if err != nil {
			return err
		}
		unlinked, need = append(unlinked, name), need+size
	}
	if len(unlinked) > 0 {
		if err := haveRoom(files, to, need); err != nil {
			return err
		}
	}
	for _, name := range unlinked {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := vfs.LinkOrCopy(files, files.PathJoin(from, name), files.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return syncDir(files, to)
}
