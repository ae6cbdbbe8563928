package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemd/idemd/store/pebblestore"
)

// A first start after a restore that is killed is made again: with the flag as long as the
// directory says that it is a backup, and without it from then on. No key that was forgotten is
// granted on the way.
func TestKill9DuringRestore(t *testing.T) {
	root, data := t.TempDir(), t.TempDir()
	s := serve(t, data, "--backup-root", root)
	s.run(t, "claim", "--id=known", "--attempt=a").ok(t)
	s.run(t, "backup", "one").ok(t)
	s.run(t, "claim", "--id=lost", "--attempt=a").ok(t)
	s.stop()
	kills := map[string]string{"in the beginning": "", "when it has raised the floors": "restored from a backup", "when it serves": "msg=serving"}
	for name, after := range kills {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "restored")
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "one"))); err != nil {
				t.Fatal(err)
			}
			killRestore(t, dir, after)
			at, err := pebblestore.BackupTime(nil, dir)
			if err != nil {
				t.Fatal(err)
			}
			said, refused := []string{"--restored-from=backup"}, []string{}
			says := "--restored-from"
			if at.IsZero() {
				said, refused = refused, said
				says = "directory is no backup any more: the recovery of the backup of "
			}
			serving := []string{"serve", "--data-dir", dir, "--grpc-addr=127.0.0.1:0", "--admin-addr="}
			run(t, append(serving, refused...)...).fails(t, exitFailed, says)
			s := serve(t, dir, said...)
			s.run(t, "claim", "--id=known", "--attempt=a").ok(t)
			s.run(t, "claim", "--id=lost", "--attempt=a").fails(t, exitFailed, "UNKNOWN_HISTORY")
		})
	}
}

// killRestore starts the server on a restored backup and kills it after it has said something.
func killRestore(t *testing.T, dir, after string) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--restored-from=backup", "--data-dir="+dir)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for after != "" && lines.Scan() && !strings.Contains(lines.Text(), after) {
	}
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); err == nil {
		t.Error("the server ended before it was killed")
	}
}
