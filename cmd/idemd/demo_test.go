package main

import (
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
	none := run(t, "demo", "--break=none", "--guard=none").ok(t)
	if want := "payment rows  1\ncharges       1\nreceipts      1\nrepeated: nothing\nguarded: nothing\n"; none != want {
		t.Errorf("got\n%s\nwant\n%s", none, want)
	}
	if first, second := run(t, "demo").ok(t), run(t, "demo", "--break=all", "--guard=all").ok(t); first != second {
		t.Errorf("without flags\n%s\nwith all\n%s", first, second)
	}
	help := run(t, "demo", "--help").ok(t)
	for _, part := range []string{"    worker        dies after the charge", "    provider-key  client.Do around the charge", "all or none (all)"} {
		if !strings.Contains(help, part) {
			t.Errorf("the help does not say %q:\n%s", part, help)
		}
	}
}

func TestDemoRefuses(t *testing.T) {
	run(t, "demo", "--break=tap").fails(t, exitUsage, `--break: "tap" is none of app, balancer`)
	run(t, "demo", "--guard=inbox,all").fails(t, exitUsage, `--guard: "all" is none of kept-key, `, "alone")
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
