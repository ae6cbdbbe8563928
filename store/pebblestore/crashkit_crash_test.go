package pebblestore_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// dataDir is where stores on an in-memory file system live. Nothing makes it beforehand.
const dataDir = "/srv/idemd"

// openOptions returns the options that every test of this kit opens a store with.
// A fatal error is collected in fatal.
func openOptions(fs vfs.FS, source store.ClockSource, fatal *fatals) pebblestore.Options {
	return pebblestore.Options{FS: fs, Source: source, Logger: slog.New(slog.DiscardHandler),
		Fatal: fatal.add, MemTableBytes: 64 << 10, SpareLogBytes: 72 << 10, BlockCacheBytes: 1 << 20, MaintainEvery: -1}
}

// fatals collects what a store's Fatal hook was called with.
type fatals struct {
	mu   sync.Mutex
	errs []error
	came *sync.Cond
}

func newFatals() *fatals {
	f := &fatals{}
	f.came = sync.NewCond(&f.mu)
	return f
}

func (f *fatals) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
	f.came.Broadcast()
}

// wait returns once the hook has been called.
func (f *fatals) wait() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.errs) == 0 {
		f.came.Wait()
	}
}

func (f *fatals) all() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errs
}

// crash is the state of a disk at a crash, with what had been asked and answered by then.
type crash struct {
	fs      *vfs.MemFS
	history *history
	cut     cut
	wall    time.Time
	where   string
}

// crasher is the file system of a store under test: before every operation that changes a
// file it takes crash clones of the disk.
type crasher struct {
	disk     *vfs.MemFS
	clock    *storetest.Clock
	percents []int // of unsynced data kept, taken in turn
	every    int   // a crash at every so many operations; zero for none

	mu      sync.Mutex
	before  func(errorfs.Op) error // see [crasher.beforeEach]
	rng     *rand.Rand
	history *history
	kinds   map[string]bool // of files that were changed, see [fileKind]
	ops     int
	crashes []crash
}

func newCrasher(disk *vfs.MemFS, clock *storetest.Clock, seed uint64, every int, percents ...int) *crasher {
	return &crasher{disk: disk, clock: clock, every: every, percents: percents,
		kinds: map[string]bool{}, before: func(errorfs.Op) error { return nil }, rng: rand.New(rand.NewPCG(seed, 1))}
}

// fs returns the file system to open the store on.
func (c *crasher) fs() vfs.FS { return crasherFS{errorfs.Wrap(c.disk, c), c} }

// crasherFS sees also what is done to reused files, which errorfs leaves out.
type crasherFS struct {
	*errorfs.FS
	c *crasher
}

// ReuseForWrite implements [vfs.FS].
func (fs crasherFS) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	as := renamed{fs.c, newName}
	if err := as.MaybeError(errorfs.Op{Kind: errorfs.OpReuseForWrite}); err != nil {
		return nil, err
	}
	fs.c.mu.Lock() // MemFS locks itself twice here, and waits for ever if it is cloned in between
	f, err := fs.c.disk.ReuseForWrite(oldName, newName, category)
	fs.c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(f, as), nil
}

// Link implements [vfs.FS]. MemFS locks itself twice here too.
func (fs crasherFS) Link(oldName, newName string) error {
	if err := fs.c.MaybeError(errorfs.Op{Kind: errorfs.OpLink, Path: newName}); err != nil {
		return err
	}
	fs.c.mu.Lock()
	defer fs.c.mu.Unlock()
	return fs.c.disk.Link(oldName, newName)
}

// renamed is an injector for a file that has been given another name.
type renamed struct {
	*crasher
	name string
}

// MaybeError implements [errorfs.Injector].
func (r renamed) MaybeError(op errorfs.Op) error {
	op.Path = r.name
	return r.crasher.MaybeError(op)
}

// beforeEach has f called with every operation from now on that changes a file. It may hold it back
// or, by an error, fail it.
func (c *crasher) beforeEach(f func(errorfs.Op) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = f
}

// crashEvery sets at how many file operations there is a crash; zero for none.
func (c *crasher) crashEvery(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.every = n
}

// record makes later crashes part of a history.
func (c *crasher) record(h *history) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history = h
}

// take returns the crashes so far and forgets them.
func (c *crasher) take() []crash {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.crashes
	c.crashes = nil
	return taken
}

// String implements [errorfs.Injector].
func (c *crasher) String() string { return "crasher" }

// MaybeError implements [errorfs.Injector].
func (c *crasher) MaybeError(op errorfs.Op) error {
	if !changes(op) {
		return nil
	}
	c.mu.Lock()
	before := c.before // the store has goroutines, which go on while a test sets another one
	c.mu.Unlock()
	if err := before(op); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops++
	c.kinds[fileKind(op.Path)] = true
	if c.every > 0 && c.ops%c.every == 0 {
		percent := c.percents[c.ops/c.every%len(c.percents)]
		c.crash(percent, fmt.Sprintf("before file operation %d (%s)", c.ops, nameOf(op)))
	}
	return nil
}

// crash takes a crash clone now.
func (c *crasher) crash(percent int, where string) {
	answered := c.history.instant()
	clone := c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.rng})
	c.crashes = append(c.crashes, crash{
		fs:      clone,
		history: c.history,
		cut:     cut{answered: answered, started: c.history.instant()},
		wall:    c.clock.Wall(),
		where:   fmt.Sprintf("crash %s, %d %% of unsynced data kept", where, percent),
	})
}

// crashNow takes a crash clone at no particular operation.
func (c *crasher) crashNow(where string, percent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crash(percent, where)
}

// inBubble runs f in a bubble of its own. What goroutines leave in pools for each other
// must not cross its border: two collections empty every pool.
func inBubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	emptyPools := func() { runtime.GC(); runtime.GC() }
	emptyPools()
	defer emptyPools()
	synctest.Test(t, f)
}

// changes reports whether an operation changes a file or what of it is on disk.
func changes(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpFileClose, errorfs.OpLock, errorfs.OpFilePreallocate, errorfs.OpFileFlush, errorfs.OpFileSyncTo:
		return false
	}
	return op.Kind.ReadOrWrite() == errorfs.OpIsWrite
}

func isSync(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
}

func isWAL(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".log") }

var opNames = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpRemove: "remove", errorfs.OpRemoveAll: "remove",
	errorfs.OpRename: "rename", errorfs.OpReuseForWrite: "reuse", errorfs.OpMkdirAll: "mkdir", errorfs.OpFileWrite: "write",
	errorfs.OpFileWriteAt: "write", errorfs.OpFileSync: "sync", errorfs.OpFileSyncData: "sync",
}

func nameOf(op errorfs.Op) string { return opNames[op.Kind] + " " + path.Base(op.Path) }

// storeNow reads the store's clock.
func storeNow(t testing.TB, b store.Backend) time.Time {
	t.Helper()
	page, err := b.ListRecords(t.Context(), store.ListRequest{Namespace: store.DefaultNamespace, PageSize: 1})
	if err != nil {
		t.Fatalf("list records: %v", err)
	}
	return page.Now
}

// clockAt returns a clock that stands at wall.
func clockAt(wall time.Time) *storetest.Clock {
	clock := storetest.NewClock()
	clock.Advance(wall.Sub(storetest.Start))
	return clock
}
