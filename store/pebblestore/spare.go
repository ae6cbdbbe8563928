package pebblestore

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// walCategory is how Pebble marks the logs that it creates.
const walCategory = "pebble-wal"

// spareFS is a file system on which new logs are files that have been written before. A
// sync of a log that grows has to wait for the file system's own log, which takes several
// times as long. Pebble does the same with logs that it needs no more; this is for those
// that it creates before it has any.
type spareFS struct {
	vfs.FS
	name string // of the spare file
	size int64

	preparing sync.WaitGroup
	mu        sync.Mutex
	ready     bool // the spare file is there
}

// newSpareFS prepares a spare file of the size and returns when it is there.
func newSpareFS(fs vfs.FS, name string, size int64) *spareFS {
	s := &spareFS{FS: fs, name: name, size: size}
	if info, err := fs.Stat(name); err == nil && info.Size() == size {
		s.ready = true
	} else {
		s.prepare()
	}
	return s
}

// Create implements [vfs.FS].
func (s *spareFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if category == walCategory && s.take() {
		f, err := s.ReuseForWrite(s.name, name, category)
		s.preparing.Go(s.prepare)
		if err == nil {
			return f, nil
		}
	}
	return s.FS.Create(name, category)
}

func (s *spareFS) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := s.ready
	s.ready = false
	return ready
}

// prepare writes a new spare file. If it cannot, for example because the disk is full,
// the next log is an ordinary file.
func (s *spareFS) prepare() {
	if err := s.write(); err != nil {
		_ = s.Remove(s.name)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
}

func (s *spareFS) write() error {
	f, err := s.FS.Create(s.name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	zeros := make([]byte, min(s.size, 1<<20))
	for left := s.size; left > 0 && err == nil; left -= int64(len(zeros)) {
		clear(zeros) // a File may change what it is given
		zeros = zeros[:min(left, int64(len(zeros)))]
		_, err = f.Write(zeros)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Unwrap implements [vfs.FS].
func (s *spareFS) Unwrap() vfs.FS { return s.FS }
