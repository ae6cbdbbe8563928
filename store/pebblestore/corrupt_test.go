package pebblestore_test

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// specimen is a data directory and what a store that opens it knows.
type specimen struct {
	files   image
	history *history // whose base is what is stored
	wall    time.Time
}

// Whatever happens to one file of a store's directory, the store refuses it or is right
// about every key, or says that it cannot tell; it never takes a key for a new one.
func TestCorruptFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it opens hundreds of spoilt directories, one after another; 'make test' plays it")
	}
	for _, closed := range []bool{true, false} {
		t.Run(map[bool]string{true: "closed", false: "crashed"}[closed], func(t *testing.T) {
			var s specimen
			inBubble(t, func(t *testing.T) { s = makeSpecimen(t, closed) })
			counts := s.spoil(t, s.files.names(), often(160))
			counts.mustHave(t, "FORMAT", verdictRefused)
			counts.mustHave(t, "MARK", verdictRight) // it is kept twice
			counts.mustHave(t, "MARK", verdictRefused)
			counts.mustHave(t, ".log", verdictRefused)
			counts.mustHave(t, "MANIFEST", verdictRefused)
			counts.mustHave(t, "marker", verdictRefused)
			counts.mustHave(t, ".sst", verdictRefused)
			counts.mustHave(t, "LOCK", verdictRight)
		})
	}
}

// Tables too large to be read through when the store opens: what is damaged in them is
// met by the calls that need it.
func TestCorruptTables(t *testing.T) {
	s := makeLargeSpecimen(t).compacted(t)
	var tables []string
	for _, name := range s.files.names() {
		if path.Ext(name) == ".sst" {
			tables = append(tables, name)
		}
	}
	counts := s.spoil(t, tables, often(100))
	counts.mustHave(t, ".sst", verdictCannot)
}

// often returns how many damages of a kind to try.
func often(normal int) int {
	if testing.Short() {
		return normal / 10
	}
	return normal
}

// makeSpecimen makes a directory with logs, tables, several manifests' worth of edits,
// several buckets, events and namespaces. If it is not to be closed, it is what a crash
// leaves of it once nothing has happened for a while.
func makeSpecimen(t *testing.T, closed bool) specimen {
	clock := storetest.NewClock()
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, disk, clock)
	r := newRig(t, s, clock)
	for i := range uint64(5) {
		r.round(t, 40+i, 3, 60)
		r.advance(t, 17*time.Minute)
		if i%2 == 1 {
			mustClose(t, s)
			s = mustOpen(t, disk, clock)
			r.backend = s
			r.nextRound(t, r.history.base)
		}
	}
	r.round(t, 50, 3, 10)
	if !closed {
		time.Sleep(time.Hour) // of the bubble's time: whatever the store still does is done
		disk = disk.CrashClone(vfs.CrashCloneCfg{})
	}
	mustClose(t, s)
	return specimen{files: imageOf(t, disk, dataDir), history: r.history, wall: clock.Wall()}
}

// makeLargeSpecimen makes a closed directory with tables of many blocks.
func makeLargeSpecimen(t *testing.T) specimen {
	clock := storetest.NewClock()
	disk := vfs.NewMem()
	s := mustOpen(t, disk, clock)
	r := newRig(t, s, clock)
	r.history.keys = manyKeys(60)
	for i := range uint64(3) {
		r.round(t, 60+i, 3, 200)
		mustClose(t, s)
		s = mustOpen(t, disk, clock)
		r.backend = s
		r.advance(t, time.Minute)
	}
	mustClose(t, s)
	return specimen{files: imageOf(t, disk, dataDir), history: r.history, wall: clock.Wall()}
}

// silent is a log of Pebble's that nobody reads.
type silent struct{}

func (silent) Infof(string, ...any)      {}
func (silent) Errorf(string, ...any)     {}
func (silent) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// compacted returns the specimen with one table instead of several, so that nothing is
// compacted as soon as it is opened.
func (s specimen) compacted(t *testing.T) specimen {
	t.Helper()
	fs := vfs.NewMem()
	s.files.write(t, fs, dataDir)
	p := &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: silent{}}
	for i := range p.Levels {
		p.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(fs.PathJoin(dataDir, "db"), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Compact(t.Context(), []byte{0}, []byte{0xff}, false), db.Close()); err != nil {
		t.Fatal(err)
	}
	s.files = imageOf(t, fs, dataDir)
	return s
}

// verdict is what became of a spoilt store.
type verdict int

const (
	verdictRight   verdict = iota // it opened and everything is right
	verdictRefused                // it did not open
	verdictCannot                 // it opened, and cannot tell about some keys
	verdictWrong
)

// verdicts counts verdicts by kind of file.
type verdicts map[string]*[4]int

func (v verdicts) mustHave(t *testing.T, kind string, want verdict) {
	t.Helper()
	if v[kind] == nil || v[kind][want] == 0 {
		t.Errorf("no damage of %s came to verdict %d: this test does not reach it", kind, want)
	}
}

// spoil spoils files in many ways, one at a time, and checks what becomes of the store.
func (s specimen) spoil(t *testing.T, names []string, each int) verdicts {
	type job struct {
		file string
		damage
	}
	var (
		mu      sync.Mutex
		counts  = verdicts{}
		current = map[string]bool{} // what is being checked
		jobs    = make(chan job)
		workers sync.WaitGroup
	)
	hangGuard(t, 5*time.Minute, func() string { mu.Lock(); defer mu.Unlock(); return fmt.Sprint(current) })
	for range 2 {
		workers.Go(func() {
			for j := range jobs {
				what, kind := j.file+" "+j.what, fileKind(j.file)
				mu.Lock()
				current[what] = true
				mu.Unlock()
				v := s.check(t, what, s.files.with(j.file, j.content))
				mu.Lock()
				delete(current, what)
				if counts[kind] == nil {
					counts[kind] = new([4]int)
				}
				counts[kind][v]++
				mu.Unlock()
			}
		})
	}
	for _, name := range names {
		for _, d := range damages(name, s.files[name], each) {
			jobs <- job{name, d}
		}
	}
	close(jobs)
	workers.Wait()
	for kind, n := range counts {
		t.Logf("%-10s %5d right, %5d refused, %5d cannot tell, %d wrong", kind, n[verdictRight], n[verdictRefused], n[verdictCannot], n[verdictWrong])
	}
	return counts
}

// fileKind groups files of one kind.
func fileKind(name string) string {
	base := path.Base(name)
	switch ext := path.Ext(base); {
	case ext == ".log" || ext == ".sst":
		return ext
	case strings.HasPrefix(base, "marker."):
		return "marker"
	}
	kind, _, _ := strings.Cut(base, "-")
	return kind
}

// check opens a spoilt directory and asks about everything.
func (s specimen) check(t testing.TB, what string, files image) (v verdict) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: panic: %v", what, p)
			v = verdictWrong
		}
	}()
	fs := vfs.NewMem()
	files.write(t, fs, dataDir)
	opened, err := pebblestore.Open(dataDir, openOptions(fs, clockAt(s.wall), newFatals()))
	if err != nil {
		if problem := unclear(err); problem != "" {
			t.Errorf("%s: refused, but %s: %v", what, problem, err)
		}
		return verdictRefused
	}
	v = s.ask(t, what, opened)
	_, _ = opened.Maintain(t.Context()) // may refuse, must return
	_ = opened.Close()                  // may fail, must return
	return v
}

// unclear says what is wrong with the error of a refused directory.
func unclear(err error) string {
	var known bool
	for _, sentinel := range []error{pebblestore.ErrDamaged, pebblestore.ErrForeignDir, pebblestore.ErrNewerFormat} {
		known = known || errors.Is(err, sentinel)
	}
	switch text := err.Error(); {
	case !known:
		return "the error is none of those that Open documents"
	case !strings.Contains(text, dataDir):
		return "the error does not name the directory"
	case errors.Is(err, pebblestore.ErrDamaged) && !strings.Contains(text, "backup"):
		return "the error does not say what to do"
	}
	return ""
}

// ask compares everything a store says with what is true.
func (s specimen) ask(t testing.TB, what string, b store.Backend) verdict {
	v := verdictRight
	note := func(got, want, about string) bool {
		switch got {
		case want:
			return true
		case answerCorrupt, answerUnknown:
			v = max(v, verdictCannot)
		default:
			t.Errorf("%s: %s: got\n  %s\nwant\n  %s", what, about, got, want)
			v = verdictWrong
		}
		return false
	}
	page, err := b.ListRecords(t.Context(), store.ListRequest{Namespace: store.DefaultNamespace})
	if !note(render(nil, err), render(nil, nil), "list records") {
		return v
	}
	if page.Now.Before(s.history.now) {
		t.Errorf("%s: the clock went back from %v to %v", what, s.history.now, page.Now)
	}
	for name, ns := range s.history.namespaces {
		got, err := b.GetNamespace(t.Context(), name)
		note(render(got, err), render(ns, nil), "namespace "+name)
	}
	for _, key := range s.history.keys {
		at := s.history.base[key]
		for _, req := range questions(key, at) {
			next, want := decide(at, s.history.namespaces[key.Namespace], req, page.Now)
			if !note(send(t.Context(), b, req), want, fmt.Sprintf("%T %+v", req, req)) {
				break
			}
			at = next
		}
	}
	return v
}

// questions are calls that show whether a store still knows a row.
func questions(key store.Key, at row) []any {
	asked := []any{
		inspectRequest{key},
		store.LookupRequest{Key: key, Fingerprint: fingerprintOf(key)},
	}
	if at.Record != nil && at.Record.AttemptID != "" {
		asked = append(asked, store.ClaimRequest{Key: key, AttemptID: at.Record.AttemptID, Fingerprint: fingerprintOf(key)})
	}
	return append(asked,
		store.ClaimRequest{Key: key, AttemptID: "newcomer", Fingerprint: fingerprintOf(key)},
		inspectRequest{key})
}
