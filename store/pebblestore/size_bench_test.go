package pebblestore_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// residentBytes is what the process has in memory now.
func residentBytes(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skipf("resident memory is read from /proc, which is not there: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kib) * 1024
}

// diskBytes is what the files of the directory take.
func diskBytes(b *testing.B, dir string) float64 {
	b.Helper()
	var total int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // a file may go while the directory is read
		}
		if info, err := entry.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return float64(total)
}

// BenchmarkTwoMillionKeys fills a store with completed keys, opens it again and claims a
// few of them. Run it with -benchtime=1x. The memory is that of store and callers.
func BenchmarkTwoMillionKeys(b *testing.B) {
	const keys = 2_000_000
	dir := b.TempDir()
	for b.Loop() {
		s, err := pebblestore.Open(dir, pebblestore.Options{})
		if err != nil {
			b.Fatal(err)
		}
		fill(b, s, keys)
		b.ReportMetric(residentBytes(b)/1e6, "MB-filled")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		debug.FreeOSMemory()

		begun := time.Now()
		if s, err = pebblestore.Open(dir, pebblestore.Options{}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(begun).Milliseconds()), "ms-to-open")
		for i := range 100_000 {
			if claim(b, s, strconv.Itoa(i*17)).Completed == nil {
				b.Fatal("a completed key is not there")
			}
		}
		b.ReportMetric(residentBytes(b)/1e6, "MB-reopened")
		b.ReportMetric(diskBytes(b, dir)/1e6, "MB-on-disk")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDropBucket drops a bucket of a million records while 16 callers claim keys.
// Run it with -benchtime=1x. Window medians are compared: those during the drop, and after
// it until the disk has come back, with those before.
func BenchmarkDropBucket(b *testing.B) {
	const keys = 1_000_000
	for b.Loop() {
		clock := storetest.NewClock()
		dir := b.TempDir()
		s, err := pebblestore.Open(dir, pebblestore.Options{Source: clock, MaintainEvery: -1})
		if err != nil {
			b.Fatal(err)
		}
		fill(b, s, keys)
		clock.Advance(2 * store.TierDay.MaxRetention())

		load := startLoad(b, s, 16)
		before := load.windows(20)
		full := diskBytes(b, dir)
		var report store.Maintenance
		during := load.windowsWhile(func() {
			if report, err = s.Maintain(b.Context()); err != nil {
				b.Error(err)
			}
		})
		if len(report.Dropped) != 1 {
			b.Errorf("dropped %v, want one bucket", report.Dropped)
		}
		dropped := time.Now()
		after := load.windowsWhile(func() {
			for time.Since(dropped) < time.Minute && diskBytes(b, dir) > full/2 {
				time.Sleep(250 * time.Millisecond)
			}
		})
		after = append(after, load.windows(20)...)
		load.stop()

		base := median(before)
		b.ReportMetric(base, "µs-before")
		b.ReportMetric(median(during)/base, "x-during")
		b.ReportMetric(slices.Max(during)/base, "x-during-worst")
		b.ReportMetric(median(after)/base, "x-after")
		b.ReportMetric(slices.Max(after)/base, "x-after-worst")
		b.ReportMetric(slices.Max(before)/base, "x-before-worst")
		b.ReportMetric(full/1e6, "MB-before")
		b.ReportMetric(diskBytes(b, dir)/1e6, "MB-after")
		b.ReportMetric(time.Since(dropped).Seconds(), "s-to-disk")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func median(values []float64) float64 {
	values = slices.Clone(values)
	slices.Sort(values)
	return values[len(values)/2]
}

// load claims and releases one key a caller without end, so that it adds little to the
// disk, and keeps how long each claim took.
type load struct {
	workers sync.WaitGroup
	stopped atomic.Bool

	mu   sync.Mutex
	took []float64 // µs, of the window that runs
}

func startLoad(b *testing.B, s *pebblestore.Store, callers int) *load {
	l := &load{}
	for i := range callers {
		l.workers.Go(func() {
			req := claimRequest(fmt.Sprint("load-", i))
			for n := 0; !l.stopped.Load(); n++ {
				req.AttemptID = strconv.Itoa(n)
				begun := time.Now()
				answer, err := s.Claim(b.Context(), req)
				took := float64(time.Since(begun).Nanoseconds()) / 1000
				if err != nil || answer.Granted == nil {
					b.Errorf("got %+v, %v; want granted", answer, err)
					return
				}
				_, err = s.Release(b.Context(), store.ReleaseRequest{
					Key: req.Key, AttemptID: req.AttemptID, Fence: answer.Granted.Fence, Effect: store.EffectNone,
				})
				if err != nil {
					b.Error(err)
					return
				}
				l.mu.Lock()
				l.took = append(l.took, took)
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) stop() {
	l.stopped.Store(true)
	l.workers.Wait()
}

// window lasts a tenth of a second and returns the median of its claims.
func (l *load) window() float64 {
	l.mu.Lock()
	l.took = l.took[:0]
	l.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	l.mu.Lock()
	took := slices.Clone(l.took)
	l.mu.Unlock()
	if len(took) == 0 {
		return 100_000 // nothing was answered
	}
	return median(took)
}

func (l *load) windows(n int) (medians []float64) {
	for range n {
		medians = append(medians, l.window())
	}
	return medians
}

func (l *load) windowsWhile(run func()) (medians []float64) {
	done := make(chan struct{})
	go func() {
		run()
		close(done)
	}()
	for {
		medians = append(medians, l.window())
		select {
		case <-done:
			return medians
		default:
		}
	}
}
