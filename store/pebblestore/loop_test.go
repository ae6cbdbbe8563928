package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// hold stops the loop until the returned function is called, so that operations queue up.
func hold(t *testing.T, s *Store) (letGo func()) {
	t.Helper()
	held, release := make(chan struct{}), make(chan struct{})
	go func() {
		_ = s.do(context.Background(), classSettle, "", 0, func(*turn) error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	return func() { close(release) }
}

func TestAbandonedOperationHasNoEffect(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	letGo := hold(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	abandoned := make(chan error)
	go func() {
		_, err := s.Claim(ctx, testClaim("k", "a"))
		abandoned <- err
	}()
	waitQueued(s, classClaim, 1)
	cancel()
	if err := <-abandoned; !errors.Is(err, context.Canceled) {
		t.Errorf("Claim: %v, want the context's error", err)
	}
	letGo()
	if n := mustClaim(t, s, "k", "b").AttemptNumber; n != 1 {
		t.Errorf("the key was granted %d times before", n-1)
	}
}

// waitQueued returns when n operations of the class are queued.
func waitQueued(s *Store, c class, n int) {
	for {
		s.intake.mu.Lock()
		got := s.intake.queues[c].Len()
		s.intake.mu.Unlock()
		if got >= n {
			return
		}
		runtime.Gosched()
	}
}

func TestOperationsOfOneBatchSeeEachOther(t *testing.T) {
	clock := storetest.NewClock()
	s := mustOpen(t, Options{FS: vfs.NewCrashableMem(), Source: clock, CacheBytes: 1, MaintainEvery: -1})
	first := mustClaim(t, s, "k", "a")
	clock.Advance(time.Hour)
	letGo := hold(t, s)
	// One batch: a takeover, with its event, and the holder of before, too late, with one.
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := s.Claim(context.Background(), testClaim("k", "b")); err != nil {
			t.Error(err)
		}
	})
	waitQueued(s, classClaim, 1)
	letGo()
	group.Wait()
	letGo = hold(t, s)
	for i := range 3 {
		group.Go(func() {
			_, err := s.Complete(context.Background(), store.CompleteRequest{
				Key: testClaim("k", "").Key, AttemptID: "a", Fence: first.Fence,
				Outcome: &store.Outcome{Body: []byte{byte(i)}},
			})
			if !errors.Is(err, store.ErrStaleFence) {
				t.Errorf("late Complete: %v", err)
			}
		})
		waitQueued(s, classSettle, i+1)
	}
	letGo()
	group.Wait()
	inspected, err := s.InspectRecord(t.Context(), testClaim("k", "").Key)
	if err != nil {
		t.Fatal(err)
	}
	if len(inspected.Events) != 4 {
		t.Fatalf("%d events, want the takeover and three late outcomes", len(inspected.Events))
	}
	for i, e := range inspected.Events[1:] {
		if e.Kind != store.EventLateOutcome || e.Outcome.Body[0] != byte(i) {
			t.Errorf("event %d is %+v", i+1, e)
		}
	}
}

var errDisk = errors.New("disk gone")

func TestFailedSyncStopsTheStore(t *testing.T) {
	for name, match := range map[string]func(errorfs.Op) bool{
		"log": func(op errorfs.Op) bool {
			return strings.HasSuffix(op.Path, ".log") &&
				(op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo || op.Kind == errorfs.OpFileWrite)
		},
		"mark": func(op errorfs.Op) bool {
			return strings.HasSuffix(op.Path, fileMark) && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var toggle errorfs.Toggle
			toggle.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
				if match(op) {
					return errDisk
				}
				return nil
			})
			fatal := make(chan error, 1)
			opts := testOptions(errorfs.Wrap(vfs.NewCrashableMem(), &toggle))
			opts.Fatal = func(err error) { fatal <- err }
			s := mustOpen(t, opts)
			mustClaim(t, s, "before", "a")
			toggle.On()
			_, _ = s.Claim(t.Context(), testClaim("during", "a")) // the mark's failure may come after its answer
			if err := <-fatal; !errors.Is(err, errDisk) {
				t.Errorf("Fatal was told %v", err)
			}
			toggle.Off()
			for range 3 {
				if _, err := s.Claim(t.Context(), testClaim("before", "a")); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("Claim after the failure: %v, want ErrUnavailable", err)
				}
			}
			if _, err := s.ListRecords(t.Context(), store.ListRequest{Namespace: "default"}); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("ListRecords after the failure: %v, want ErrUnavailable", err)
			}
			if err := s.Close(); !errors.Is(err, errDisk) {
				t.Errorf("Close: %v, want the failure", err)
			}
		})
	}
}

// Nobody whose operation was in the batch that could not be synced gets an answer.
func TestFailedSyncAnswersNobody(t *testing.T) {
	var toggle errorfs.Toggle
	toggle.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && op.Kind != errorfs.OpFileWrite {
			return errDisk
		}
		return nil
	})
	s := mustOpen(t, testOptions(errorfs.Wrap(vfs.NewCrashableMem(), &toggle)))
	mustClaim(t, s, "before", "a")
	letGo := hold(t, s)
	toggle.On()
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			answer, err := s.Claim(context.Background(), testClaim(fmt.Sprint(i%10), "a"))
			if !errors.Is(err, store.ErrUnavailable) || answer != (store.ClaimAnswer{}) {
				t.Errorf("Claim: %+v, %v; want ErrUnavailable", answer, err)
			}
		})
	}
	waitQueued(s, classClaim, 50)
	letGo()
	group.Wait()
}

func TestClosedStoreIsUnavailable(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	fence := mustClaim(t, s, "k", "a").Fence
	_, err := s.Complete(t.Context(), store.CompleteRequest{
		Key: testClaim("k", "a").Key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{},
	})
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	mustClose(t, s)
	_, claimErr := s.Claim(t.Context(), testClaim("k", "a"))
	_, listErr := s.ListRecords(t.Context(), store.ListRequest{Namespace: "default"})
	_, maintainErr := s.Maintain(t.Context())
	for _, err := range []error{claimErr, listErr, maintainErr} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	}
}

func TestClosingAnswersWhatIsQueued(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	letGo := hold(t, s)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			if _, err := s.Claim(context.Background(), testClaim(fmt.Sprint(i), "a")); err != nil {
				t.Error(err)
			}
		})
	}
	waitQueued(s, classClaim, 20)
	group.Go(func() { mustClose(t, s) })
	letGo()
	group.Wait()
}

// The clock of an answer that changed nothing must not be seen again from before.
func TestClockNeverGoesBackOverACrash(t *testing.T) {
	fs, clock := vfs.NewCrashableMem(), storetest.NewClock()
	s := mustOpen(t, Options{FS: fs, Source: clock, MaintainEvery: -1})
	mustClaim(t, s, "k", "a")
	var last time.Time
	for range 20 {
		clock.Advance(7 * time.Millisecond)
		inspected, err := s.InspectRecord(t.Context(), testClaim("k", "").Key)
		if err != nil {
			t.Fatal(err)
		}
		last = inspected.Now
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	clock.StepWall(-time.Hour)
	again := mustOpen(t, Options{FS: crashed, Source: clock, MaintainEvery: -1})
	inspected, err := again.InspectRecord(t.Context(), testClaim("k", "").Key)
	if err != nil {
		t.Fatal(err)
	}
	if got := inspected.Now; got.Before(last) || got.After(last.Add(clockReserve)) {
		t.Errorf("the clock goes on at %v; the last answer was at %v", got, last)
	}
}

func TestResumedClockStandsStillUntilTheWallHasCaughtUp(t *testing.T) {
	source := storetest.NewClock()
	c := resumeClock(Options{Source: source}.withDefaults(), commitTime{now: storetest.Start, until: storetest.Start.Add(clockReserve)})
	for _, want := range []time.Duration{clockReserve, clockReserve, clockReserve + 10*time.Millisecond} {
		if got := c.Now(); !got.Equal(storetest.Start.Add(want)) {
			t.Errorf("the clock shows start + %v, want + %v", got.Sub(storetest.Start), want)
		}
		source.Advance(30 * time.Millisecond)
	}
}

// A look-up that cannot read must say so, and never that the key is absent.
func TestUnreadableRowIsNeverAbsent(t *testing.T) {
	opts := testOptions(vfs.NewCrashableMem())
	s := mustOpen(t, opts)
	mustClaim(t, s, "k", "a")
	mustClose(t, s)
	key := testClaim("k", "").Key
	rowKey := appendRowKey(nil, bucketOf(store.TierDay, storetest.Start), key.Digest())
	editDB(t, opts.FS, func(b *pebble.Batch) { _ = b.Set(rowKey, []byte("rubbish"), nil) })

	observer := &damageCounter{}
	opts.Observer = observer
	s = mustOpen(t, opts)
	_, claimErr := s.Claim(t.Context(), testClaim("k", "b"))
	_, lookupErr := s.Lookup(t.Context(), store.LookupRequest{Key: key})
	_, inspectErr := s.InspectRecord(t.Context(), key)
	for _, err := range []error{claimErr, lookupErr, inspectErr} {
		if !errors.Is(err, store.ErrRecordCorrupt) {
			t.Errorf("%v, want ErrRecordCorrupt", err)
		}
	}
	mustClaim(t, s, "other", "a")
	if n := observer.count(); n < 3 {
		t.Errorf("the observer was told of %d damaged values, want 3", n)
	}
}

type damageCounter struct {
	mu sync.Mutex
	n  int
}

func (c *damageCounter) Committed(int, int, time.Duration) {}

func (c *damageCounter) WallAhead(time.Duration) {}

func (c *damageCounter) Damaged(error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *damageCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := mustOpen(t, Options{FS: vfs.NewCrashableMem()})
	mustClaim(t, s, "k", "a")
	mustClose(t, s)
	goleak.VerifyNone(t, before)
}

// The chain of commits is cut while the store runs, and never so far that the record of a
// flush could get lost unnoticed.
func TestChainStaysShort(t *testing.T) {
	opts := testOptions(vfs.NewCrashableMem())
	opts.MemTableBytes = 64 << 10
	s := mustOpen(t, opts)
	var flushed []uint64
	for i := range 4000 {
		mustClaim(t, s, fmt.Sprint(i), "a")
		if i%400 == 399 {
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			flushed = append(flushed, s.pruner.applied.Load())
		}
	}
	mustClaim(t, s, "last", "a")
	low, err := readChainLow(s.db)
	if err != nil {
		t.Fatal(err)
	}
	if low < 1000 || low > flushed[len(flushed)-3] {
		t.Errorf("the chain begins at %d; the last flushes ended at %v", low, flushed)
	}
	mustClose(t, s)
	mustClose(t, mustOpen(t, opts))
}
