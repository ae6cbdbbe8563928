package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// serveRegions starts a server for each of eu and us; the default namespace is of us.
func serveRegions(t *testing.T) (eu, us *served) {
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
	start := func(name string) *served {
		return serve(t, t.TempDir(), "--grpc-addr="+addrs[name], "--region="+name, "--topology="+topology)
	}
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

func TestRegionMove(t *testing.T) {
	eu, us := serveRegions(t)
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
	if given := run(t, "region", "move", "default", "us", "--abandon", "--addr", us.addr); given.code != exitOK || given.stdout != "step: abandoned\n" {
		t.Errorf("nothing is under way: %+v", given)
	}

	eu.stop()
	lost := run(t, "region", "move", "default", "eu", "--addr", us.addr)
	lost.fails(t, exitNoAnswer, "no answer from "+eu.addr, "nothing was sent")
	if list := run(t, "region", "list", "--addr", us.addr).ok(t); !strings.Contains(list, "no answer") {
		t.Errorf("the list does not say that eu is down:\n%s", list)
	}
}

func TestRegionNeedsATopology(t *testing.T) {
	s := serve(t, t.TempDir())
	run(t, "region", "list", "--addr", s.addr).fails(t, exitFailed, "region")
	run(t, "region", "move", "default", "eu", "--addr", s.addr).fails(t, exitFailed, "region")
}
