package pebblestore

import (
	"errors"
	"os"
	"path/filepath"
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
