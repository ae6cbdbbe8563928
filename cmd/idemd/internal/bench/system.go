package bench

import (
	"os"
	"path/filepath"
	"slices"
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
	const writes, size = 256, 512
	file, err := os.Create(filepath.Join(dir, "sync-latency"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.Write(make([]byte, writes*size)); err != nil {
		return 0, err
	}
	if err := file.Sync(); err != nil {
		return 0, err
	}
	latencies := make([]time.Duration, writes)
	for i := range latencies {
		start := time.Now()
		if _, err := file.WriteAt(make([]byte, size), int64(i*size)); err != nil {
			return 0, err
		}
		if err := datasync(file); err != nil {
			return 0, err
		}
		latencies[i] = time.Since(start)
	}
	slices.Sort(latencies)
	return quantile(latencies, 0.5), nil
}
