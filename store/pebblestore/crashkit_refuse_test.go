package pebblestore_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// madeStore makes a directory on the operating system's file system with a store that knows some keys.
func madeStore(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	openAndCall(t, dir, 1)
	return dir
}

// newerPebble is a store whose database was upgraded by a newer Pebble.
func newerPebble(t *testing.T) string {
	dir := madeStore(t)
	marker, err := filepath.Glob(filepath.Join(dir, "db", "marker.format-version.*"))
	if err != nil || len(marker) != 1 {
		t.Fatalf("format markers: %v, %v", marker, err)
	}
	if err := os.Rename(marker[0], strings.TrimSuffix(marker[0], filepath.Ext(marker[0]))+".999"); err != nil {
		t.Fatal(err)
	}
	return dir
}

// openAndCall opens a store, calls it and closes it again.
func openAndCall(t *testing.T, dir string, seed uint64) {
	t.Helper()
	clock := storetest.NewClock()
	s, err := pebblestore.Open(dir, openOptions(vfs.Default, clock, newFatals()))
	if err != nil {
		t.Fatal(err)
	}
	newRig(t, s, clock).burst(t, seed, 2, 30)
	mustClose(t, s)
}

// A directory that is not a whole store of a known format is refused with one clear error,
// and nothing in it is touched.
func TestRefusedDirectoryIsNotTouched(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T) string
		want error
		says string
	}{
		{"of a user's files", userFiles, pebblestore.ErrForeignDir, "notes.txt"},
		{"of a user's files, named like ours", filesNamedLikeOurs, pebblestore.ErrDamaged, "FORMAT"},
		{"of a newer version", newerStore, pebblestore.ErrNewerFormat, "it is 4, this version knows up to 3"},
		{"of an older version", olderStore, pebblestore.ErrOlderFormat, "it is 1, this version reads 2 to 3"},
		{"of a newer Pebble", newerPebble, pebblestore.ErrNewerFormat, "format 999"},
		{"with another store's mark", func(t *testing.T) string { return mixed(t, madeStore(t), "MARK") }, pebblestore.ErrDamaged, "another store"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := test.make(t)
			before := imageOf(t, vfs.Default, dir)
			_, err := pebblestore.Open(dir, openOptions(vfs.Default, storetest.NewClock(), newFatals()))
			switch {
			case !errors.Is(err, test.want):
				t.Errorf("Open: %v, want %v", err, test.want)
			case !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n"):
				t.Errorf("the error is not one clear line with %q and the directory: %v", test.says, err)
			}
			mustBeEqual(t, before, imageOf(t, vfs.Default, dir))
		})
	}
}

// A database that is not the one that the mark speaks of is refused, however often. That
// is known only after Pebble has opened it, which rewrites its files.
func TestMixedUpDirectoryIsRefused(t *testing.T) {
	for name, dir := range map[string]string{
		"another store's database":      mixed(t, madeStore(t), "db/"),
		"an older copy of the database": olderDatabase(t),
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				_, err := pebblestore.Open(dir, openOptions(vfs.Default, storetest.NewClock(), newFatals()))
				if !errors.Is(err, pebblestore.ErrDamaged) || !strings.Contains(err.Error(), "backup") {
					t.Errorf("Open: %v, want %v and what to do", err, pebblestore.ErrDamaged)
				}
			}
		})
	}
}

// mustBeEqual reports files that were made, changed or removed.
func mustBeEqual(t *testing.T, before, after image) {
	t.Helper()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(before.names(), after.names()...)))) {
		was, had := before[name]
		is, has := after[name]
		if had != has || !bytes.Equal(was, is) {
			t.Errorf("%s was touched: was there %t (%d bytes), is there %t (%d bytes)", name, had, len(was), has, len(is))
		}
	}
}

func userFiles(t *testing.T) string {
	dir := t.TempDir()
	image{"notes.txt": []byte("mine"), "photos/cat.jpg": {0xff, 0xd8}}.write(t, vfs.Default, dir)
	return dir
}

func filesNamedLikeOurs(t *testing.T) string {
	dir := t.TempDir()
	image{"FORMAT": []byte("letter"), "MARK": []byte("school report"), "db/CURRENT": []byte("affairs")}.write(t, vfs.Default, dir)
	return dir
}

// newerStore is a store as a version with another format would have made it.
func newerStore(t *testing.T) string { return storeOfFormat(t, 4) }
func olderStore(t *testing.T) string { return storeOfFormat(t, 1) }

func storeOfFormat(t *testing.T, version int) string {
	dir := madeStore(t)
	setFormat(t, vfs.Default, dir, version)
	return dir
}

// setFormat has the directory say that it is of a version.
func setFormat(t *testing.T, fs vfs.FS, dir string, version int) {
	t.Helper()
	body, _, _ := strings.Cut(readAll(t, fs, dir+"/FORMAT"), "crc ")
	body = strings.Replace(body, "format 3\n", fmt.Sprintf("format %d\n", version), 1)
	sum := crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli))
	writeAll(t, fs, dir+"/FORMAT", fmt.Sprintf("%scrc %08x\n", body, sum))
	d, err := fs.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// mixed puts a part of another store into a store.
func mixed(t *testing.T, dir, part string) string {
	t.Helper()
	files, other := imageOf(t, vfs.Default, dir), imageOf(t, vfs.Default, madeStore(t))
	isPart := func(name string, _ []byte) bool { return strings.HasPrefix(name, part) }
	maps.DeleteFunc(files, isPart)
	for name, content := range other {
		if isPart(name, content) {
			files[name] = content
		}
	}
	mixed := t.TempDir()
	files.write(t, vfs.Default, mixed)
	return mixed
}

// olderDatabase is a store whose database was put back to what it was some calls ago.
func olderDatabase(t *testing.T) string {
	dir := madeStore(t)
	old := imageOf(t, vfs.Default, dir)
	openAndCall(t, dir, 2)
	for name, content := range imageOf(t, vfs.Default, dir) {
		if !strings.HasPrefix(name, "db/") {
			old[name] = content
		}
	}
	restored := t.TempDir()
	old.write(t, vfs.Default, restored)
	return restored
}

// secondProcess is the environment variable that names a directory which a copy of the
// test binary is to open.
const secondProcess = "PEBBLESTORE_TEST_OPEN"

// A directory in use is refused to a second store, in this process and in another.
func TestLockedDirectory(t *testing.T) {
	if dir := os.Getenv(secondProcess); dir != "" {
		_, err := pebblestore.Open(dir, openOptions(vfs.Default, storetest.NewClock(), newFatals()))
		fmt.Printf("locked: %t: %v\n", errors.Is(err, pebblestore.ErrLocked), err)
		return
	}
	dir := madeStore(t)
	clock := storetest.NewClock()
	s, err := pebblestore.Open(dir, openOptions(vfs.Default, clock, newFatals()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pebblestore.Open(dir, openOptions(vfs.Default, clock, newFatals())); !errors.Is(err, pebblestore.ErrLocked) {
		t.Errorf("a second store in this process: %v, want %v", err, pebblestore.ErrLocked)
	}
	second := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLockedDirectory$")
	second.Env = append(os.Environ(), secondProcess+"="+dir)
	out, err := second.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "locked: true") || !strings.Contains(string(out), dir) {
		t.Errorf("a second process: %v\n%s", err, out)
	}
	claim := gateOther
	claim.Key.ID = "claimed by nobody before"
	mustAnswer(t, s, claim) // and the first goes on
	mustClose(t, s)
	openAndCall(t, dir, 3)
}
