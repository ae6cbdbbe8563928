package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// Backups that are made every few minutes do not fill the disk.
func TestBackupKeepsSoMany(t *testing.T) {
	root, data := t.TempDir(), t.TempDir()
	s := serve(t, data, "--backup-root", root)
	s.run(t, "backup", "a", "--keep", "0").fails(t, exitUsage, "--keep")
	s.run(t, "backup", "a", "--keep=-1").fails(t, exitUsage, "--keep")
	if err := os.Mkdir(filepath.Join(root, "0-not-a-backup"), 0o700); err != nil {
		t.Fatal(err)
	}
	left := func(want ...string) {
		t.Helper()
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if want := append([]string{"0-not-a-backup"}, want...); !slices.Equal(names, want) {
			t.Errorf("there are %q, want %q", names, want)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if text := s.run(t, "backup", name).ok(t); strings.Contains(text, "removed") {
			t.Errorf("without --keep one is removed:\n%s", text)
		}
	}
	left("a", "b", "c")
	var made idemdv1.BackupResponse
	s.json(t, &made, "backup", "d", "--keep=3")
	if !slices.Equal(made.GetRemoved(), []string{"a"}) || made.GetDirectory() != filepath.Join(root, "d") {
		t.Errorf("made %v", &made)
	}
	left("b", "c", "d")
	s.run(t, "backup", "d", "--keep=1").fails(t, exitFailed, "exists")
	left("b", "c", "d")
	s.stop()

	text := run(t, "backup", filepath.Join(root, "e"), "--data-dir", data, "--keep=2").ok(t)
	if strings.Count(text, "removed") != 2 {
		t.Errorf("it does not say what was removed:\n%s", text)
	}
	left("d", "e")
}
