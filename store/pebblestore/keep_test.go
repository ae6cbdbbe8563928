package pebblestore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// mustBackUp makes a backup of a name, a second after whatever was before.
func mustBackUp(t *testing.T, s *pebblestore.Store, clock *storetest.Clock, dir string) {
	t.Helper()
	clock.Advance(time.Second)
	if _, err := s.Backup(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
}

// Of a store's backups the oldest make room for a new one, and nothing else does.
func TestKeepBackups(t *testing.T) {
	root, clock := t.TempDir(), storetest.NewClock()
	open := func(name string) *pebblestore.Store {
		opts := openOptions(vfs.Default, clock, newFatals())
		s, err := pebblestore.Open(filepath.Join(root, "stores", name), opts)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, other := open("one"), open("other")
	defer mustClose(t, s)
	backups := filepath.Join(root, "backups")
	at := func(name string) string { return filepath.Join(backups, name) }
	for _, dir := range []string{backups, at("unfinished"), at("notes"), filepath.Join(root, "elsewhere")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"unfinished/UNFINISHED", "notes/FORMAT", "file"} {
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustBackUp(t, other, clock, at("another store's"))
	mustBackUp(t, s, clock, filepath.Join(root, "elsewhere", "linked"))
	if err := os.Symlink(filepath.Join(root, "elsewhere", "linked"), at("link")); err != nil {
		t.Fatal(err)
	}
	// Later ones have names that come before.
	for _, name := range []string{"restored in its place", "e", "d", "c", "b"} {
		mustBackUp(t, s, clock, at(name))
	}
	restored := openOptions(vfs.Default, clock, newFatals())
	restored.Restored = true
	r, err := pebblestore.Open(at("restored in its place"), restored)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, r)
	mustClose(t, other)

	stay := []string{"another store's", "file", "link", "notes", "restored in its place", "unfinished"}
	check := func(newest string, keep int, removed, left []string) {
		t.Helper()
		got, err := s.KeepBackups(t.Context(), at(newest), keep)
		if err != nil || !slices.Equal(got, removed) {
			t.Errorf("keep %d: removed %q, %v, want %q", keep, got, err, removed)
		}
		entries, err := os.ReadDir(backups)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		want := append(slices.Clone(stay), left...)
		slices.Sort(want)
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("keep %d: left are %q, want %q", keep, names, want)
		}
	}
	check("b", 5, nil, []string{"b", "c", "d", "e"})
	check("b", 3, []string{"e"}, []string{"b", "c", "d"})
	check("c", 1, []string{"d"}, []string{"b", "c"}) // that which came meanwhile is not its own to remove
	check("b", 1, []string{"c"}, []string{"b"})
	for _, none := range []int{0, -1} {
		if _, err := s.KeepBackups(t.Context(), at("b"), none); err == nil {
			t.Errorf("keep %d is not refused", none)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "elsewhere", "linked", "FORMAT")); err != nil {
		t.Errorf("what a link leads to: %v", err)
	}
}

// A removal that is interrupted, wherever, leaves what nobody takes for a whole backup by its name,
// and the next one takes it up.
func TestKeepBackupsInterrupted(t *testing.T) {
	for stop := 1; ; stop++ {
		clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
		withBackups(t, disk)
		left := -1
		files := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			switch op.Kind {
			case errorfs.OpRemoveAll, errorfs.OpRename, errorfs.OpFileSync:
			default:
				return nil
			}
			if left < 0 || !strings.HasPrefix(op.Path, "/backups") {
				return nil
			}
			if left--; left < 0 {
				left = 0
				return errors.New("interrupted")
			}
			return nil
		}))
		s := mustOpen(t, files, clock)
		for _, name := range []string{"a", "b", "c"} {
			mustBackUp(t, s, clock, "/backups/"+name)
		}
		left = stop - 1
		_, err := s.KeepBackups(t.Context(), "/backups/c", 2)
		left = -1
		whole := func(name string) bool {
			at, err := pebblestore.BackupTime(disk, "/backups/"+name)
			return err == nil && !at.IsZero()
		}
		if !whole("b") || !whole("c") {
			t.Fatalf("stopped at %d: one that is to be kept has gone", stop)
		}
		for seed := range uint64(10) {
			opts := openOptions(disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, 0))}), clock, newFatals())
			opts.Restored = true
			r, err := pebblestore.Open("/backups/a", opts)
			if err == nil {
				mustClose(t, r)
			} else if !errors.Is(err, pebblestore.ErrNoBackup) {
				t.Fatalf("stopped at %d and crashed: of the backup only a part is there: %v", stop, err)
			}
		}
		if _, err := s.KeepBackups(t.Context(), "/backups/c", 2); err != nil {
			t.Errorf("stopped at %d, again: %v", stop, err)
		}
		names, _ := disk.List("/backups")
		slices.Sort(names)
		if fmt.Sprint(names) != "[b c]" {
			t.Errorf("stopped at %d: in the end there are %v", stop, names)
		}
		mustClose(t, s)
		if err == nil {
			if stop < 5 {
				t.Errorf("it was never interrupted after %d", stop)
			}
			return
		}
	}
}
