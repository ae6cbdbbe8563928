package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// regions makes a topology of eu and us, where the default namespace is of us, and returns what
// starts a server of one, with an empty store unless another one is named.
func regions(t *testing.T) (start func(name string, args ...string) *served) {
	t.Helper()
	addrs := map[string]string{}
	text := "regions:\n"
	for _, name := range []string{"eu", "us"} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addrs[name] = lis.Addr().String()
		text += fmt.Sprintf("  %s: {address: %q}\n", name, addrs[name])
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
	}
	topology := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(topology, []byte(text+"placements:\n  \"*\": fixed us\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(name string, args ...string) *served {
		if len(args) == 0 {
			args = []string{"--data-dir=" + t.TempDir()}
		}
		return serveOn(t, append(args, "--grpc-addr="+addrs[name], "--region="+name, "--topology="+topology)...)
	}
}

// serveRegions starts a server for each, and waits until keys have a home.
func serveRegions(t *testing.T, start func(name string, args ...string) *served) (eu, us *served) {
	t.Helper()
	eu, us = start("eu"), start("us")
	until(t, func() bool {
		return run(t, "claim", "--addr", eu.addr, "--id", "order-1", "--attempt", "a", "--lease", "1s").code == exitOK
	})
	return eu, us
}

// until waits for something that happens soon, without looking for it all the time.
func until(t *testing.T, happened func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-deadline:
			t.Fatal("it does not happen")
		case <-tick.C:
		}
	}
}

func stepsIn(out string) []string {
	var steps []string
	for line := range strings.Lines(out) {
		steps = append(steps, strings.TrimSpace(line))
	}
	return slices.DeleteFunc(steps, func(line string) bool { return strings.HasPrefix(line, "step: waiting") })
}

// What this command reaches is not what the asked region does: both are shown.
func TestRegionListShowsWhatTheRegionReaches(t *testing.T) {
	start := regions(t)
	us := start("us")
	topology := filepath.Join(t.TempDir(), "topology.yaml")
	text := fmt.Sprintf("regions:\n  eu: {address: %q}\n  us: {address: %q, peer-address: %q}\nplacements:\n  \"*\": fixed us\n", "127.0.0.1:1", us.addr, freeAddr(t))
	if err := os.WriteFile(topology, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	eu := serveOn(t, "--data-dir="+t.TempDir(), "--region=eu", "--topology="+topology)
	list := ""
	until(t, func() bool {
		list = run(t, "region", "list", "--addr", eu.addr).ok(t)
		return strings.Contains(list, "connection refused")
	})
	for _, want := range []string{
		`(?m)^REGION +ADDRESS +STORE +JOINED +FROM eu +FROM HERE$`,
		`(?m)^eu \(asked\) .* no +- +answers$`,
		`(?m)^us .* no +no answer +answers$`,
		`(?m)^Region us does not answer region eu: .*connection refused`,
	} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("the list does not say %s:\n%s", want, list)
		}
	}
}

func TestRegionMove(t *testing.T) {
	eu, us := serveRegions(t, regions(t))
	list := run(t, "region", "list", "--addr", us.addr).ok(t)
	for _, part := range []string{"us (asked)", eu.addr, "answers", "default", "fixed us"} {
		if !strings.Contains(list, part) {
			t.Errorf("the list does not say %q:\n%s", part, list)
		}
	}

	moved := run(t, "region", "move", "default", "eu", "--addr", us.addr, "--patience", "100ms")
	want := []string{"step: frozen", "step: sealed", "step: copied 1", "step: flipped", "step: forgotten", "step: done"}
	if got := stepsIn(moved.stdout); moved.code != exitOK || !slices.Equal(got, want) {
		t.Fatalf("exit code %d, steps %q, want %q\n%s", moved.code, got, want, moved.stderr)
	}
	if again := run(t, "region", "move", "default", "eu", "--addr", us.addr); again.code != exitOK || again.stdout != "step: done\n" {
		t.Errorf("again: %+v", again)
	}
	if list := run(t, "region", "list", "--addr", eu.addr).ok(t); !strings.Contains(list, "fixed eu") {
		t.Errorf("the list does not have the new home:\n%s", list)
	}
	// What was moved is used as before, wherever it is asked.
	if found := run(t, "lookup", "--addr", us.addr, "--id", "order-1"); found.code != exitOK || !strings.HasPrefix(found.stdout, "lapsed") {
		t.Errorf("lookup: %+v", found)
	}

	run(t, "region", "move", "default", "mars", "--addr", us.addr).fails(t, exitFailed, "mars", "eu, us")
	run(t, "region", "move", "none", "eu", "--addr", us.addr).fails(t, exitFailed, "NAMESPACE_UNKNOWN")
	run(t, "region", "move", "default", "us", "--abandon", "--addr", us.addr).fails(t, exitFailed, "no move of namespace", "nothing was changed", "fixed eu")

	eu.stop()
	lost := run(t, "region", "move", "default", "eu", "--addr", us.addr)
	lost.fails(t, exitNoAnswer, "no answer from "+eu.addr, "nothing was sent")
	// A refusal that says that nothing was done is not followed by what to do about a grant.
	until(t, func() bool {
		refused := run(t, "claim", "--addr", us.addr, "--id", "order-2")
		return refused.code == exitNoAnswer && strings.Contains(refused.stderr, "HOME_UNREACHABLE") && strings.Contains(refused.stderr, "nothing was done") &&
			!strings.Contains(refused.stderr, "may have been granted")
	})
	// A command without a key speaks of none.
	refused := run(t, "namespace", "create", "payments", "--addr", us.addr)
	refused.fails(t, exitNoAnswer, "namespaces are the same in all regions", "nothing was done", `region "eu"`, "; run the same command again")
	for _, not := range []string{"the key", "attempt id", "may have been done"} {
		if strings.Contains(refused.stderr, not) {
			t.Errorf("%q speaks of %q", refused.stderr, not)
		}
	}
	if list := run(t, "region", "list", "--addr", us.addr).ok(t); !strings.Contains(list, "no answer") {
		t.Errorf("the list does not say that eu is down:\n%s", list)
	}
}

// Regions that share a database have a store each in it, and one stands in for another.
func TestRegionsOnOneDatabase(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	for _, name := range []string{"eu", "us"} {
		run(t, "migrate", "up", "--store="+dsn, "--region="+name).ok(t)
	}
	start := regions(t)
	eu, us := start("eu", "--store="+dsn, "--stand-in=us"), start("us", "--store="+dsn)
	until(t, func() bool {
		return run(t, "claim", "--addr", eu.addr, "--id", "order-1", "--attempt", "a").code == exitOK
	})
	us.stop()
	until(t, func() bool {
		return run(t, "claim", "--addr", eu.addr, "--id", "order-2", "--attempt", "a").code == exitOK
	})
	us = start("us", "--store="+dsn) // the same store still
	until(t, func() bool {
		return run(t, "lookup", "--addr", us.addr, "--id", "order-2").code == exitOK
	})
	eu.stop()
	us.stop()
	alone := run(t, "serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--store="+dsn, "--region=us")
	if alone.code != exitUsage || !strings.Contains(alone.stderr, `the store is that of region "us"`) {
		t.Errorf("served without a topology: %+v", alone)
	}
}

// What an operator does after the store of a region was lost.
func TestRegionAccept(t *testing.T) {
	start := regions(t)
	eu, us := serveRegions(t, start)
	us.stop()
	us = start("us")
	var refused result
	until(t, func() bool {
		refused = run(t, "claim", "--addr", eu.addr, "--id", "order-1", "--attempt", "b")
		return strings.Contains(refused.stderr, "--store-id")
	})
	_, after, _ := strings.Cut(refused.stderr, "region accept us --store-id ")
	id := strings.Fields(after)[0]
	var list string
	until(t, func() bool { // the new store may have refused before it was asked which one it is
		list = run(t, "region", "list", "--addr", eu.addr).ok(t)
		return strings.Contains(list, "not believed")
	})
	for _, says := range []string{"  no      not believed: it has the store " + id, "idemd region accept us --store-id " + id + " --reason WHY"} {
		if !strings.Contains(list, says) {
			t.Errorf("the list does not say %q:\n%s", says, list)
		}
	}
	command := []string{"region", "accept", "us", "--store-id", id}
	run(t, append(slices.Clip(command), "--addr", eu.addr)...).fails(t, exitUsage, "--reason")
	run(t, append(slices.Clip(command), "--addr", us.addr, "--reason", "the disk is gone")...).fails(t, exitFailed, "ask a server of another region")
	if out := run(t, append(slices.Clip(command), "--addr", eu.addr, "--reason", "the disk is gone")...).ok(t); !strings.Contains(out, "accepted: region us has the store "+id) {
		t.Errorf("got %q", out)
	}
	until(t, func() bool {
		return strings.Contains(run(t, "claim", "--addr", eu.addr, "--id", "order-1", "--attempt", "b").stderr, "UNKNOWN_HISTORY")
	})
	until(t, func() bool {
		list = run(t, "region", "list", "--addr", eu.addr).ok(t)
		return strings.Contains(list, id+"  yes") && strings.Count(list, "  yes  ") == 2
	})
}

func TestRegionNeedsATopology(t *testing.T) {
	s := serve(t, t.TempDir())
	run(t, "region", "list", "--addr", s.addr).fails(t, exitFailed, "region")
	run(t, "region", "move", "default", "eu", "--addr", s.addr).fails(t, exitFailed, "region")
	run(t, "region", "accept", "eu", "--addr", s.addr, "--store-id", store.NewStoreID(), "--reason", "r").fails(t, exitFailed, "region")
}
