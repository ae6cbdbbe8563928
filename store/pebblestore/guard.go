package pebblestore

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardedFS closes two gaps between Pebble and a file system.
type guardedFS struct {
	vfs.FS
	log *pebbleLogger
}

// Create makes a file. What a marker names has its place in the directory on disk before
// the marker can have: Pebble makes both and syncs the directory once, after which a crash
// may have kept the marker alone.
func (g guardedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(g.PathBase(name), "marker.") {
		if err := syncDir(g.FS, g.PathDir(name)); err != nil {
			return nil, err
		}
	}
	f, err := g.FS.Create(name, category)
	g.stopWithoutLog(name, err)
	return f, err
}

// ReuseForWrite turns a log that is no longer needed into a new one.
func (g guardedFS) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(oldName, newName, category)
	g.stopWithoutLog(newName, err)
	return f, err
}

// stopWithoutLog stops the store where Pebble would panic while it holds a lock, which the
// process would not survive. A log that is copied for a backup is none of the store's.
func (g guardedFS) stopWithoutLog(name string, err error) {
	if err != nil && strings.HasSuffix(name, ".log") && g.PathBase(g.PathDir(name)) != dirStaging {
		g.log.Fatalf("make the log %s: %v", name, err)
	}
}

// Unwrap returns the file system underneath.
func (g guardedFS) Unwrap() vfs.FS { return g.FS }
