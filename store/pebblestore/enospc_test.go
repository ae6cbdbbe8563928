package pebblestore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// fault makes matching file operations fail from some moment on.
type fault struct {
	name  string
	match func(errorfs.Op) bool
	err   error

	mu    sync.Mutex
	armed bool
	hits  int
	over  bool
	never *sync.Cond // which nobody signals
}

func (f *fault) arm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = true
}

// check is a crasher's before. Once the test is over it holds back whatever comes: in a
// store that has stopped, Pebble may go on trying until the process ends.
func (f *fault) check(op errorfs.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.over {
		f.never.Wait()
	}
	if !f.armed || !f.match(op) {
		return nil
	}
	f.hits++
	return f.err
}

// end ends the test of the fault.
func (f *fault) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.never, f.over = sync.NewCond(&f.mu), true
}

func createOf(part string) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		create := op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite
		return create && strings.Contains(op.Path, part)
	}
}

func syncOf(part string) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool { return isSync(op) && strings.Contains(op.Path, part) }
}

func writeOf(part string) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		write := op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt
		return write && strings.Contains(op.Path, part)
	}
}

// faults returns what can go wrong with a disk. A write to a full disk fails with ENOSPC,
// a sync of a broken one with EIO.
func faults() []*fault {
	return []*fault{
		{name: "sync of a log", match: syncOf(".log"), err: syscall.EIO},
		{name: "sync of the mark", match: syncOf("MARK"), err: syscall.EIO},
		{name: "sync of a manifest", match: syncOf("MANIFEST"), err: syscall.EIO},
		{name: "full disk, log", match: writeOf(".log"), err: syscall.ENOSPC},
		{name: "full disk, mark", match: writeOf("MARK"), err: syscall.ENOSPC},
		{name: "full disk, manifest", match: writeOf("MANIFEST"), err: syscall.ENOSPC},
		{name: "full disk, table", match: writeOf(".sst"), err: syscall.ENOSPC},
		{name: "full disk, new table", match: createOf(".sst"), err: syscall.ENOSPC},
		{name: "full disk, new log", match: createOf(".log"), err: syscall.ENOSPC},
		{name: "sync of a table", match: syncOf(".sst"), err: syscall.EIO},
	}
}

// After a failed write or sync the store stops: it acknowledges nothing more, says so
// once, and what it had acknowledged is on disk.
func TestFailedDisk(t *testing.T) {
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) { failedDisk(t, f) })
	}
}

func failedDisk(t *testing.T, f *fault) {
	step := "opening"
	hangGuard(t, 2*time.Minute, func() string { return step })
	clock := storetest.NewClock()
	c := newCrasher(vfs.NewCrashableMem(), clock, 3, 0)
	c.beforeEach(f.check)
	t.Cleanup(f.end)
	fatal := newFatals()
	s, err := pebblestore.Open(dataDir, openOptions(c.fs(), clock, fatal))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, s, clock)
	r.history.keys = manyKeys(300) // more than become completed, after which there is nothing to write
	r.round(t, 1, 4, 20)
	c.record(r.history)

	step = "calling while the disk fails"
	f.arm()
	for i := uint64(2); !f.failed() && i < 40; i++ {
		r.burst(t, i, 4, 50)
	}
	if !f.failed() {
		t.Fatalf("the fault never came: the load is too small (fatal errors: %v)", fatal.all())
	}
	step = "waiting for the Fatal hook"
	fatal.wait()
	step = "calling a store that has stopped"
	checkStopped(t, s)
	step = "closing"
	if err := s.Close(); err == nil {
		t.Error("Close says that all is well")
	}
	if errs := fatal.all(); len(errs) != 1 {
		t.Errorf("the Fatal hook was called %d times: %v", len(errs), errs)
	}
	c.crashNow("after the failure", 0)
	c.crashNow("after the failure", 100)
	step = "opening again"
	verifyAll(t, c.take())
}

func (f *fault) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits > 0
}

// checkStopped checks that no call is answered any more.
func checkStopped(t *testing.T, s *pebblestore.Store) {
	t.Helper()
	for _, req := range append(gateReads, gateOther, gateForce, gateSettle, gateUnknown) {
		if answer := send(t.Context(), s, req); answer != answerUnknown {
			t.Errorf("after the failure, %T is answered %s", req, answer)
		}
	}
	_, createErr := s.CreateNamespace(t.Context(), store.Namespace{Name: "late"})
	_, updateErr := s.UpdateNamespace(t.Context(), store.Namespace{Name: "hold", Retention: time.Hour})
	_, getErr := s.GetNamespace(t.Context(), store.DefaultNamespace)
	_, listErr := s.ListRecords(t.Context(), store.ListRequest{Namespace: store.DefaultNamespace})
	_, maintainErr := s.Maintain(t.Context())
	for i, err := range []error{createErr, updateErr, getErr, listErr, maintainErr} {
		if render(nil, err) != answerUnknown {
			t.Errorf("after the failure, call %d gives %v", i, err)
		}
	}
}

// diskToFill is the environment variable that names a directory which a copy of the test
// binary is to fill with a store.
const diskToFill = "PEBBLESTORE_TEST_FILL"

// A disk that really is full stops the store; with room again, all that was acknowledged
// is there. The store that stopped runs in a process of its own, which then ends.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(diskToFill); dir != "" {
		fmt.Printf("acknowledged %d\n", fillDisk(t, dir))
		return
	}
	if !withOwnMounts(t) {
		return
	}
	disk := smallDisk(t, "4m")
	dir := filepath.Join(disk, "data")
	filler := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$", "-test.timeout=2m")
	filler.Env = append(os.Environ(), diskToFill+"="+dir)
	out, err := filler.CombinedOutput()
	var acknowledged int
	if _, scanErr := fmt.Sscanf(string(out), "acknowledged %d", &acknowledged); err != nil || scanErr != nil || acknowledged == 0 {
		t.Fatalf("filling the disk: %v, %v\n%s", err, scanErr, out)
	}
	t.Logf("%d outcomes acknowledged", acknowledged)

	growDisk(t, disk, "64m")
	s, err := pebblestore.Open(dir, openOptions(vfs.Default, storetest.NewClock(), newFatals()))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	for i := range acknowledged {
		answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: fillKey(i), AttemptID: "two"})
		if err != nil || answer.Completed == nil || answer.Completed.Outcome.Digest() != fillOutcome(i).Digest() {
			t.Errorf("key %d of %d: %+v, %v; want its outcome", i, acknowledged, answer, err)
		}
	}
}

func fillKey(i int) store.Key { return store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprint(i)} }

// fillOutcome makes an outcome that cannot be compressed.
func fillOutcome(i int) *store.Outcome {
	body := make([]byte, 100<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(body)
	return &store.Outcome{Body: body}
}

// fillDisk claims and completes keys until the store answers no more, checks how it
// stopped, and returns how many it has completed.
func fillDisk(t *testing.T, dir string) int {
	fatal := newFatals()
	s, err := pebblestore.Open(dir, openOptions(vfs.Default, storetest.NewClock(), fatal))
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	for fillOne(t, s, acknowledged) {
		acknowledged++
	}
	fatal.wait()
	checkStopped(t, s)
	if err := s.Close(); err == nil {
		t.Error("Close says that all is well")
	}
	return acknowledged
}

// fillOne completes a key and reports whether that was acknowledged.
func fillOne(t *testing.T, s *pebblestore.Store, i int) bool {
	claim, err := s.Claim(t.Context(), store.ClaimRequest{Key: fillKey(i), AttemptID: "one"})
	if err == nil {
		complete := store.CompleteRequest{Key: fillKey(i), AttemptID: "one", Fence: claim.Granted.Fence, Outcome: fillOutcome(i)}
		_, err = s.Complete(t.Context(), complete)
	}
	if err != nil && !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("key %d: %v", i, err)
	}
	return err == nil
}
