package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// The way of an operator from a backup of a running server to a store that grants again.
func TestBackupToRecovery(t *testing.T) {
	root, data := t.TempDir(), t.TempDir()
	for where, says := range map[string]string{"": "--backup-root is empty", filepath.Join(root, "no"): "no such file", os.Args[0]: "not a directory", data: "inside of --data-dir"} {
		run(t, "serve", "--data-dir", data, "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--backup-root", where).fails(t, exitUsage, says)
	}
	s := serve(t, data, "--backup-root", root)
	s.run(t, "claim", "--id=known", "--attempt=a").ok(t)
	s.run(t, "complete", "--id=known", "--attempt=a", "--outcome=charged").ok(t)
	for name, says := range map[string]string{"../out": "the name of a backup", "/tmp/out": "the name of a backup", "": "the name of a backup"} {
		s.run(t, "backup", name).fails(t, exitFailed, says)
	}
	var made idemdv1.BackupResponse
	s.json(t, &made, "backup", "monday")
	dir := filepath.Join(root, "monday")
	if made.GetDirectory() != dir {
		t.Errorf("the backup is in %s", made.GetDirectory())
	}
	s.run(t, "backup", "monday").fails(t, exitFailed, "exists")
	if err := os.Rename(root, root+"-unmounted"); err != nil {
		t.Fatal(err)
	}
	s.run(t, "backup", "tuesday").fails(t, exitNoAnswer, "STORE_UNAVAILABLE", "no backup was made", "make another")
	if err := os.Rename(root+"-unmounted", root); err != nil {
		t.Fatal(err)
	}
	s.run(t, "claim", "--id=lost", "--attempt=a").ok(t)
	s.run(t, "claim", "--id=nothing", "--attempt=a").ok(t)
	s.stop()

	at := made.GetAt().AsTime().Format(time.RFC3339Nano)
	run(t, "serve", "--data-dir", dir, "--grpc-addr=127.0.0.1:0", "--admin-addr=").fails(t, exitFailed, "--restored-from "+at)
	run(t, "serve", "--data-dir", dir, "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--restored-from=2020-01-01T00:00:00Z").fails(t, exitFailed, "it is of "+at)
	run(t, "serve", "--data-dir", dir, "--restored-from=monday").fails(t, exitUsage, "--restored-from")

	s = serve(t, dir, "--restored-from", at)
	s.run(t, "claim", "--id=known", "--attempt=b").ok(t)
	s.run(t, "claim", "--id=lost", "--attempt=a").fails(t, exitFailed, "UNKNOWN_HISTORY")
	status := s.run(t, "recovery", "status").ok(t)
	if !strings.Contains(status, "begun at ") || !strings.Contains(status, "(complete until ") {
		t.Errorf("status:\n%s", status)
	}

	lines := strings.Join([]string{
		`{"id": "lost", "outcome": {"body": "charged"}, "reason": "ledger"}`,
		`{"id": "nothing", "nothing": true}`,
		`{"id": "happened", "happened": true}`,
		`{"id": "known", "nothing": true}`,
		`{"id": "bad"}`,
		`{"id": "worse", "nothing": true, "outcom": {}}`,
		``,
		"{\"id\": \"not\xff\", \"nothing\": true}",
		`{"id": "lost", "outcome": {"body": "charged"}, "fingerprint": {"version": 1, "digest": "YQ=="}}`,
		`{"id": "unset", "happened": true, "completed_at": "0001-01-01T00:00:00Z"}`,
	}, "\n")
	file := filepath.Join(t.TempDir(), "outcomes")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, summary := range []string{"imported 3, known as that before 0, not imported 6", "imported 0, known as that before 3, not imported 6"} {
		got := s.run(t, "recovery", "import", "--namespace=default", "--reason=asked the bank", file)
		if got.code != exitFailed || !strings.Contains(got.stdout, summary) {
			t.Errorf("import: %s\n%s", got.stdout, got.stderr)
		}
		for _, says := range []string{
			"line 4: the key is known and says something else (completed, ", "line 5: say one of ", `line 6: unknown field "outcom"`,
			"line 8: byte 12 is not UTF-8", "line 9: the key is known and says something else (completed, ",
			"line 10: completed_at is the year 1",
			"outcome OK, fingerprint not known: an operator imported it without one)",
		} {
			if !strings.Contains(got.stderr, says) {
				t.Errorf("import does not say %q:\n%s", says, got.stderr)
			}
		}
	}
	s.run(t, "lookup", "--id=not\ufffd").fails(t, exitFailed, "KEY_NOT_FOUND")
	if got := s.run(t, "claim", "--id=happened", "--attempt=b").ok(t); !strings.Contains(got, "an operator only said that it happened") || !strings.Contains(got, "an operator imported the key without one") {
		t.Errorf("what happened, with no answer: %s", got)
	}
	if got := s.run(t, "claim", "--id=lost", "--attempt=b").ok(t); !strings.Contains(got, "charged") {
		t.Errorf("an imported key: %s", got)
	}
	s.run(t, "claim", "--id=nothing", "--attempt=b").ok(t)
	s.run(t, "claim", "--id=other", "--attempt=b").fails(t, exitFailed, "UNKNOWN_HISTORY")
	s.run(t, "recovery", "lift", "--namespace=default").fails(t, exitUsage, "--reason")
	s.run(t, "recovery", "lift", "--namespace=default", "--reason=all settled").fails(t, exitFailed, "NOT_CONFIRMED: ", "a lease from before the floor", "can run until", "--leases-ended")
	if got := s.run(t, "recovery", "lift", "--namespace=default", "--leases-ended", "--reason=all settled", "--actor=ann").ok(t); !strings.Contains(got, "by ann: all settled") {
		t.Errorf("lift: %s", got)
	}
	s.run(t, "recovery", "lift", "--namespace=default", "--reason=again").fails(t, exitFailed, "NO_FLOOR: no recovery floor stands: nothing was done for namespace default")
	s.run(t, "recovery", "lift", "--namespace=nobody", "--reason=again").fails(t, exitFailed, "NAMESPACE_UNKNOWN")
	s.run(t, "recovery", "lift", "--for-new", "--leases-ended", "--reason=all settled").ok(t)
	s.run(t, "recovery", "lift", "--for-new", "--reason=again").fails(t, exitFailed, "NO_FLOOR: no recovery floor stands: nothing was done for new namespaces")
	s.run(t, "claim", "--id=other", "--attempt=b").ok(t)
	s.run(t, "recovery", "begin", "--from", at, "--reason=again").ok(t)
	s.run(t, "claim", "--id=another", "--attempt=b").fails(t, exitFailed, "UNKNOWN_HISTORY")
	s.stop()

	// Offline: a backup, and a recovery of a store that was restored in another way.
	offline := filepath.Join(t.TempDir(), "offline")
	run(t, "backup", offline, "--data-dir", data).ok(t)
	run(t, "backup", offline, "--data-dir", filepath.Join(data, "no")).fails(t, exitFailed, "no store is there")
	run(t, "recovery", "begin", "--data-dir", data, "--from", at, "--reason=a snapshot").ok(t)
	s = serve(t, data)
	s.run(t, "claim", "--id=new", "--attempt=b").fails(t, exitFailed, "UNKNOWN_HISTORY")
	s.run(t, "backup", "monday").fails(t, exitFailed, "--backup-root")
}

// A database is named as for serve, by a variable: a password in an argument is seen by everybody.
func TestRecoveryBeginsInTheDatabaseOfTheVariable(t *testing.T) {
	t.Setenv("IDEMD_STORE", "postgres://idemd:secret@127.0.0.1:1/keys")
	begin := []string{"recovery", "begin", "--from=2026-01-31T15:04:05Z", "--reason=failed over"}
	got := run(t, begin...)
	got.fails(t, exitFailed, "--store: keys at 127.0.0.1:1 as idemd: ")
	if strings.Contains(got.stderr, "secret") {
		t.Error(got.stderr)
	}
	run(t, append(begin, "--data-dir="+t.TempDir())...).fails(t, exitUsage, "both --data-dir and --store (in the variable IDEMD_STORE)")
	run(t, append(begin, "--addr=127.0.0.1:7")...).fails(t, exitUsage, "both --addr and --store (in the variable IDEMD_STORE)")
	t.Setenv("IDEMD_REGION", "No Region")
	run(t, begin...).fails(t, exitUsage, "--region")
}

// Each region has floors of its own: whose are shown is said.
func TestRecoveryNamesTheRegion(t *testing.T) {
	eu, us := serveRegions(t, regions(t))
	us.run(t, "recovery", "begin", "--from=2026-01-31T15:04:05Z", "--reason=restored").ok(t)
	const asked = "region us, whose server was asked"
	lift := []string{"recovery", "lift", "--namespace=default", "--leases-ended", "--reason=settled"}
	if got := us.run(t, "recovery", "status").ok(t); !strings.HasPrefix(got, asked) {
		t.Errorf("status: %s", got)
	}
	eu.run(t, lift...).fails(t, exitFailed, "region eu, whose server was asked: NO_FLOOR: no recovery floor stands: nothing was done for namespace default")
	if got := us.run(t, lift...).ok(t); !strings.HasPrefix(got, asked) {
		t.Errorf("lift: %s", got)
	}
}
