package pebblestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

func testOptions(fs vfs.FS) Options {
	return Options{FS: fs, Source: storetest.NewClock(), MaintainEvery: -1}
}

func mustOpen(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open("data", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where there must be a store none is made, also where one was begun and never finished.
func TestMustExist(t *testing.T) {
	fs := vfs.NewMem()
	opts := testOptions(fs)
	opts.MustExist = true
	for _, prepare := range []func(){
		func() {},
		func() { _ = fs.MkdirAll("data", 0o700) },
		func() { writeTestFile(t, fs, "data/"+fileCreating, "") },
	} {
		prepare()
		before, _ := fs.List("data")
		if s, err := Open("data", opts); !errors.Is(err, ErrNoStore) {
			t.Fatalf("%v, %v; want ErrNoStore", s, err)
		}
		if after, _ := fs.List("data"); !slices.Equal(after, before) {
			t.Errorf("made %v", after)
		}
	}
	s := mustOpen(t, testOptions(fs))
	if !s.Made() {
		t.Error("it does not say that it was made")
	}
	mustClose(t, s)
	if s = mustOpen(t, opts); s.Made() {
		t.Error("it says that it was made again")
	}
}

func testClaim(id, attempt string) store.ClaimRequest {
	return store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: id}, AttemptID: attempt}
}

func mustClaim(t testing.TB, s *Store, id, attempt string) *store.Granted {
	t.Helper()
	answer, err := s.Claim(t.Context(), testClaim(id, attempt))
	if err != nil || answer.Granted == nil {
		t.Fatalf("claim of %q: %+v, %v; want granted", id, answer, err)
	}
	return answer.Granted
}

// snapshot returns the content of every file.
func snapshot(t *testing.T, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		if info, err := fs.Stat(path); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			maps.Copy(files, snapshot(t, fs, path))
			continue
		}
		content, err := readFile(fs, path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = string(content)
	}
	return files
}

func writeTestFile(t *testing.T, fs vfs.FS, name, content string) {
	t.Helper()
	if err := fs.MkdirAll(fs.PathDir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFileSynced(fs, name, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

// closedStore returns a file system with a store that was closed properly.
func closedStore(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testOptions(fs))
	mustClaim(t, s, "k", "a")
	mustClose(t, s)
	return fs
}

func TestOpenRefusesAndTouchesNothing(t *testing.T) {
	newer := identity{version: formatVersion + 1, id: strings.Repeat("0", 32)}
	tests := map[string]struct {
		make func(t *testing.T) *vfs.MemFS
		want error
		text string
	}{
		"another program's file": {func(t *testing.T) *vfs.MemFS {
			fs := vfs.NewCrashableMem()
			writeTestFile(t, fs, "data/notes.txt", "mine")
			return fs
		}, ErrForeignDir, "notes.txt"},
		"another Pebble database": {func(t *testing.T) *vfs.MemFS {
			fs := vfs.NewCrashableMem()
			db, err := pebble.Open("data", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			return fs
		}, ErrForeignDir, "an empty or a new directory"},
		"newer format": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			writeTestFile(t, fs, "data/FORMAT", string(newer.encode()))
			return fs
		}, ErrNewerFormat, "knows up to 3"},
		"FORMAT damaged": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			flip(t, fs, "data/FORMAT", 20)
			return fs
		}, ErrDamaged, "restore"},
		"FORMAT gone": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			_ = fs.Remove("data/FORMAT")
			return fs
		}, ErrForeignDir, ""},
		"FORMAT gone, an old sign of creation": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			_ = fs.Remove("data/FORMAT")
			writeTestFile(t, fs, "data/CREATING", "")
			return fs
		}, ErrDamaged, "FORMAT is missing"},
		"MARK gone": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			_ = fs.Remove("data/MARK")
			return fs
		}, ErrDamaged, "MARK"},
		"both slots of MARK damaged": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			flip(t, fs, "data/MARK", 9)
			flip(t, fs, "data/MARK", 9+markSlotSize)
			return fs
		}, ErrDamaged, "MARK"},
		"MARK of another store": {func(t *testing.T) *vfs.MemFS {
			fs := closedStore(t)
			content, err := readFile(closedStore(t), "data/MARK")
			if err != nil {
				t.Fatal(err)
			}
			writeTestFile(t, fs, "data/MARK", string(content))
			return fs
		}, ErrDamaged, "another store"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fs := tt.make(t)
			before := snapshot(t, fs, "data")
			_, err := Open("data", testOptions(fs))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Open: %v; want %v with %q", err, tt.want, tt.text)
			}
			after := snapshot(t, fs, "data")
			delete(after, "data/LOCK")
			delete(before, "data/LOCK")
			if !maps.Equal(before, after) {
				t.Error("the directory was changed")
			}
		})
	}
}

func flip(t *testing.T, fs vfs.FS, name string, offset int) {
	t.Helper()
	content, err := readFile(fs, name)
	if err != nil {
		t.Fatal(err)
	}
	content[offset] ^= 1
	writeTestFile(t, fs, name, string(content))
}

type quiet struct{}

func (quiet) Infof(string, ...any)      {}
func (quiet) Errorf(string, ...any)     {}
func (quiet) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func TestOpenTwiceIsRefused(t *testing.T) {
	for name, opts := range map[string]Options{"memory": testOptions(vfs.NewCrashableMem()), "disk": testOptions(vfs.Default)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if opts.FS != vfs.Default {
				dir = "data"
			}
			s, err := Open(dir, opts)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, opts); !errors.Is(err, ErrLocked) {
				t.Errorf("second Open: %v, want ErrLocked", err)
			}
			mustClaim(t, s, "k", "a")
			mustClose(t, s)
			if s, err = Open(dir, opts); err != nil {
				t.Fatalf("Open after Close: %v", err)
			}
			mustClose(t, s)
		})
	}
}

// A crash at any moment of the creation leaves a directory that can be opened, or one in
// which nothing was acknowledged yet and the creation starts again.
func TestInterruptedCreationStartsAgain(t *testing.T) {
	for _, left := range [][]string{
		{"CREATING"},
		{"CREATING", "db/000002.log", "MARK"},
		{"CREATING", "db/CURRENT", "FORMAT.new", "LOCK"},
		{"LOCK", "lost+found/x"},
	} {
		fs := vfs.NewCrashableMem()
		for _, name := range left {
			writeTestFile(t, fs, "data/"+name, "rubbish")
		}
		s := mustOpen(t, testOptions(fs))
		mustClaim(t, s, "k", "a")
		mustClose(t, s)
		if _, err := fs.Stat("data/CREATING"); err == nil {
			t.Errorf("%v: CREATING is still there", left)
		}
	}
}

func TestOneDamagedSlotOfMarkIsHarmless(t *testing.T) {
	for _, offset := range []int{9, 9 + markSlotSize} {
		fs := closedStore(t)
		flip(t, fs, "data/MARK", offset)
		mustClose(t, mustOpen(t, testOptions(fs)))
	}
}

func TestMarkIsExactWhenClosed(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testOptions(fs))
	for i := range 10 {
		mustClaim(t, s, fmt.Sprint(i), "a")
	}
	mustClose(t, s)
	content, err := readFile(fs, "data/MARK")
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range [][]byte{content[:markSlotSize], content[markSlotSize:]} {
		// The creation, the claims and Close each are one commit.
		if m, ok := decodeMark(slot); !ok || m.at.seq != 12 {
			t.Errorf("slot says %+v, %v; want commit 12", m, ok)
		}
	}
}

func TestMarkComesBack(t *testing.T) {
	m := mark{storeID: newIdentity().id, count: 3, at: commitTime{seq: 9, now: at(5)}}
	got, ok := decodeMark(m.encode())
	m.at.now = m.at.now.Truncate(1000)
	if !ok || got != m {
		t.Errorf("got %+v, %v; want %+v", got, ok, m)
	}
	for i := range markLen * 8 {
		slot := m.encode()
		slot[i/8] ^= 1 << (i % 8)
		if _, ok := decodeMark(slot); ok {
			t.Fatalf("bit %d flipped: accepted", i)
		}
	}
}

// editDB changes the database of a closed store.
func editDB(t *testing.T, fs vfs.FS, edit func(*pebble.Batch)) {
	t.Helper()
	db, err := pebble.Open("data/db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	b := db.NewBatch()
	edit(b)
	if err := errors.Join(b.Commit(pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesAnIncompleteDatabase(t *testing.T) {
	tests := map[string]struct {
		edit func(*pebble.Batch)
		text string
	}{
		"a commit in between": {func(b *pebble.Batch) { _ = b.Delete(chainKey(2), nil) }, "commits 2 to 2 are missing"},
		"the first commits":   {func(b *pebble.Batch) { _ = b.DeleteRange(chainKey(0), chainKey(3), nil) }, "commits 1 to 2 are missing"},
		"the last commit":     {func(b *pebble.Batch) { _ = b.Delete(chainKey(3), nil) }, "commits 3 to 3"},
		"all commits":         {func(b *pebble.Batch) { _ = b.DeleteRange(chainKey(0), []byte{prefixChain + 1}, nil) }, "missing"},
		"where it begins":     {func(b *pebble.Batch) { _ = b.Delete(metaChainLow, nil) }, "cannot be read"},
		"the id":              {func(b *pebble.Batch) { _ = b.Delete(metaStoreID, nil) }, "cannot be read"},
		"the namespaces":      {func(b *pebble.Batch) { _ = b.Delete(namespaceKey(store.DefaultNamespace), nil) }, "namespace"},
		"a damaged entry": {func(b *pebble.Batch) {
			_ = b.Set(chainKey(2), binary.BigEndian.AppendUint64(nil, 1), nil)
		}, "commit 2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fs := closedStore(t) // commits 1 to 3: creation, claim, close
			editDB(t, fs, tt.edit)
			_, err := Open("data", testOptions(fs))
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Open: %v; want ErrDamaged with %q", err, tt.text)
			}
		})
	}
}

func TestOpenRefusesALostDatabase(t *testing.T) {
	fs := closedStore(t)
	if err := fs.RemoveAll("data/db"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("data", testOptions(fs)); !errors.Is(err, ErrDamaged) {
		t.Errorf("Open: %v, want ErrDamaged", err)
	}
}

// The log of a new store must already be in the format that tells damage from the end. It
// does so by what is in later blocks of 32 KiB.
func TestFirstLogTellsDamageFromItsEnd(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testOptions(fs))
	for i := range 500 {
		mustClaim(t, s, fmt.Sprint(i), "a")
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	names, err := crashed.List("data/db")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	newest := "data/db/" + names[len(names)-1]
	content, err := readFile(crashed, newest)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(content, []byte("default"))
	if at < 0 {
		t.Fatal("the newest log has no rows")
	}
	flip(t, crashed, newest, at)
	_, err = Open("data", testOptions(crashed))
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "replaying WAL") {
		t.Errorf("Open: %v, want ErrDamaged from Pebble's log", err)
	}
}

func TestPrunerKeepsTheLastFlushes(t *testing.T) {
	p := &chainPruner{}
	for i := range uint64(20) {
		p.applied.Store(10 * (i + 1))
		p.flushBegin()
		p.flushEnd()
		p.flushEnd() // of a flush in which nothing was
		want := uint64(0)
		if i >= flushHistory {
			want = 10 * (i + 2 - flushHistory)
		}
		if got := p.low.Load(); got != want {
			t.Fatalf("after flush %d entries before %d may go, want %d", i, got, want)
		}
	}
}

// A directory that is a link to where nothing is mounted is told by what is missing.
func TestOpenOfALinkToWhatIsNotThere(t *testing.T) {
	link := filepath.Join(t.TempDir(), "data")
	target := filepath.Join(t.TempDir(), "disk", "idemd")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{link, filepath.Join(link, "store")} {
		for _, opts := range []Options{{}, {MustExist: true}} {
			_, err := Open(dir, opts)
			if want := "mounted"; err == nil || !strings.Contains(err.Error(), want) || dir == link && !strings.Contains(err.Error(), link+" is a link to "+target) {
				t.Errorf("%s, %+v: %v", dir, opts, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Dir(target)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made there: %v", err)
	}
}
