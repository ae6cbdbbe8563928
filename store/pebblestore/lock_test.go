package pebblestore

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// One directory is open once, whatever way leads to it.
func TestOneStoreADirectory(t *testing.T) {
	base := t.TempDir()
	t.Chdir(base)
	direct := filepath.Join(base, "direct")
	s, err := Open(direct, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	if err := os.Symlink(direct, "link"); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{direct, "direct", "./direct", "link", filepath.Join(base, "link"), base + "//direct/", "link/../direct"} {
		second, err := Open(way, Options{})
		if !errors.Is(err, ErrLocked) {
			t.Errorf("through %q: got %v, want that it is in use", way, err)
		}
		if err == nil {
			mustClose(t, second)
		}
	}
}

// dirToOpen is the environment variable that names a directory which a copy of the test
// binary is to open.
const dirToOpen = "PEBBLESTORE_TEST_OPEN"

// The lock is not lost when the process that has it reads the directory's files: that is
// how the locks of POSIX are lost.
func TestLockStaysWhenTheFilesAreRead(t *testing.T) {
	if dir := os.Getenv(dirToOpen); dir != "" {
		s, err := Open(dir, Options{})
		fmt.Printf("locked %v %v\n", errors.Is(err, ErrLocked), err)
		if err == nil {
			mustClose(t, s)
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fileLock, filepath.Join(dirPebble, "LOCK")} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(t.TempDir(), "copy"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if says := openElsewhere(t, dir); says != "true" {
		t.Errorf("another process finds the directory locked: %s", says)
	}
	_, err = Open(dir, Options{})
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "in this process or another") || strings.Contains(err.Error(), "unavailable") {
		t.Errorf("a second Open: %v, want that it is in use", err)
	}
	if says := openElsewhere(t, dir); says != "true" {
		t.Errorf("after a second Open, another process finds the directory locked: %s", says)
	}
	mustClaim(t, s, "k", "a")
	mustClose(t, s)
	if says := openElsewhere(t, dir); says != "false" {
		t.Errorf("once it is closed, another process finds the directory locked: %s", says)
	}
}

// openElsewhere opens the directory in a process of its own and returns whether that found
// it locked.
func openElsewhere(t *testing.T, dir string) (locked string) {
	t.Helper()
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLockStaysWhenTheFilesAreRead$")
	other.Env = append(os.Environ(), dirToOpen+"="+dir)
	out, err := other.CombinedOutput()
	if _, scanErr := fmt.Sscanf(string(out), "locked %s", &locked); err != nil || scanErr != nil {
		t.Fatalf("opening in another process: %v, %v\n%s", err, scanErr, out)
	}
	return locked
}
