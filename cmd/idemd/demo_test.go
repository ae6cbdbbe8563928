package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

func TestDemo(t *testing.T) {
	got := run(t, "demo", "--break=worker", "--guard=inbox,provider-key").ok(t)
	const want = `payment rows  1
charges       1
receipts      1
repeated:
  queue  delivered message 1 again, as the worker had died after the charge
guarded:
  provider-key  the provider knew the key, and answered with the first charge
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	alone := run(t, "demo", "--break=queue", "--guard=look-up").ok(t)
	if !strings.Contains(alone, "charges       1\n") || !strings.HasSuffix(alone, "guarded:\n  look-up  idemd knew the charge of message 1\n") {
		t.Error(alone)
	}
	none := run(t, "demo", "--break=none", "--guard=none").ok(t)
	if want := "payment rows  1\ncharges       1\nreceipts      1\nrepeated: nothing\nguarded: nothing\n"; none != want {
		t.Errorf("got\n%s\nwant\n%s", none, want)
	}
	if first, second := run(t, "demo").ok(t), run(t, "demo", "--break=all", "--guard=all").ok(t); first != second {
		t.Errorf("without flags\n%s\nwith all\n%s", first, second)
	}
	help := run(t, "demo", "--help").ok(t)
	for _, part := range []string{"    worker        dies after the charge", "    provider-key  a key for the provider", "all or none (all)"} {
		if !strings.Contains(help, part) {
			t.Errorf("the help does not say %q:\n%s", part, help)
		}
	}
}

func TestDemoRefuses(t *testing.T) {
	run(t, "demo", "--break=tap").fails(t, exitUsage, `--break: "tap" is none of app, balancer`)
	run(t, "demo", "--guard=inbox,all").fails(t, exitUsage, `--guard: "all" is none of kept-key, `, "alone")
	run(t, "demo", "--break=").fails(t, exitUsage, "--break: it is empty: name some of app, balancer", "or say all or none")
	run(t, "demo", "--guard", "").fails(t, exitUsage, "--guard: it is empty")
	run(t, "demo", "--matrix", "--guard=inbox").fails(t, exitUsage, "--matrix plays all of --break and --guard")
	run(t, "demo", "--database=").fails(t, exitUsage, "--database is empty")
	got := run(t, "demo", "--database=postgres://me:secret@127.0.0.1:1/shop")
	got.fails(t, exitFailed, "the shop's database: ")
	if strings.Contains(got.stderr, "secret") {
		t.Errorf("it shows the password: %s", got.stderr)
	}
}

func TestDemoOnPostgreSQL(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	if got, want := run(t, "demo", "--database="+dsn).ok(t), run(t, "demo").ok(t); got != want {
		t.Errorf("on PostgreSQL\n%s\non SQLite\n%s", got, want)
	}
}

// Nothing is left behind by a demo that is ended while it prints, as by a pipe to head, or while it plays, as by ^C.
func TestDemoIsEnded(t *testing.T) {
	exe, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "demo", "--guard=none")
	cmd.Stdout = write
	var ended *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &ended) {
		t.Errorf("with its output closed it ended with %v", err)
	}
	if err := write.Close(); err != nil {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	p := program{name: "idemd", exit: exitUnexpectedly(t)}
	code := p.Run(ctx, []string{"demo"}, strings.NewReader(""), &stdout, &stderr)
	result{code, stdout.String(), stderr.String()}.fails(t, exitFailed, "interrupted: nothing of the demo is left")

	left, err := os.ReadDir(dir)
	if len(left) != 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
