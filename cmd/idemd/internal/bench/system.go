package bench

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// ProcessorTime is what this process has used, in user and system mode.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// SyncLatency returns the median time that 512 more bytes take to reach the disk under
// dir, in a file that already has the space: what a write-ahead log does.
func SyncLatency(dir string) (time.Duration, error) {
	const writes = 256
	log, err := newSyncLog(filepath.Join(dir, "sync-latency"), writes)
	if err != nil {
		return 0, err
	}
	defer log.remove()
	latencies := make([]time.Duration, writes)
	for i := range latencies {
		start := time.Now()
		if err := log.write(); err != nil {
			return 0, err
		}
		latencies[i] = time.Since(start)
	}
	slices.Sort(latencies)
	return quantile(latencies, 0.5), nil
}

// syncLog is a file that has its space, and is written from its start again at its end.
type syncLog struct {
	mu   sync.Mutex
	file *os.File
	size int64
	next int64
}

const syncBytes = 512

func newSyncLog(path string, writes int) (*syncLog, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	l := &syncLog{file: file, size: int64(writes) * syncBytes}
	if _, err = file.Write(make([]byte, l.size)); err == nil {
		err = file.Sync()
	}
	if err != nil {
		l.remove()
		return nil, err
	}
	return l, nil
}

// write writes, and returns when that is on the disk.
func (l *syncLog) write() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.WriteAt(make([]byte, syncBytes), l.next); err != nil {
		return err
	}
	l.next = (l.next + syncBytes) % l.size
	return datasync(l.file)
}

func (l *syncLog) remove() {
	l.file.Close()           //nolint:errcheck // it is gone
	os.Remove(l.file.Name()) //nolint:errcheck // so is its directory, soon
}
