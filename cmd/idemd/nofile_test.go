package main

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
)

// serveWithFiles starts the program where it may open so many files.
func serveWithFiles(t *testing.T, files int, args ...string) (*exec.Cmd, *bufio.Scanner, *lockedBuffer) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files)
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", script, path, "serve", "--grpc-addr=127.0.0.1:0", "--data-dir=" + t.TempDir()}, args...)...)
	stderr := &lockedBuffer{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(stdout), stderr
}

// Connections take no file from the store, which could not go on without one.
func TestConnectionsLeaveFilesToTheStore(t *testing.T) {
	const files, places, silent = 1500, 700, 1700
	admin := freeAddr(t)
	cmd, lines, stderr := serveWithFiles(t, files, "--admin-addr="+admin)
	addr := ""
	for addr == "" && lines.Scan() {
		addr, _ = strings.CutPrefix(lines.Text(), servesOn)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if addr == "" {
		t.Fatalf("it does not serve:\n%s", stderr)
	}
	until(t, func() bool { return strings.Contains(stderr.String(), "at_most=700") }) // connections
	conns := make([]net.Conn, silent)
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}()
	for i := range conns {
		var err error
		if conns[i], err = net.Dial("tcp", addr); err != nil {
			t.Fatal(err)
		}
	}
	want := fmt.Sprintf("idemd_refused_connections_total %d\n", silent-places)
	for !strings.Contains(get(t, "http://"+admin+"/metrics"), want) {
		if t.Context().Err() != nil || cmd.ProcessState != nil {
			t.Fatal(stderr)
		}
	}
	if body := get(t, "http://"+admin+"/healthz"); !strings.Contains(body, `"serving"`) || !strings.Contains(body, "all connections that callers may have") {
		t.Errorf("/healthz: %s", body)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	for strings.Contains(get(t, "http://"+admin+"/metrics"), "idemd_listeners_full 1\n") {
		continue
	}
	run(t, "claim", "--addr="+addr, "--id=a").ok(t)
}

func TestFewFilesAreRefused(t *testing.T) {
	cmd, lines, stderr := serveWithFiles(t, 500, "--admin-addr=")
	for lines.Scan() {
		t.Errorf("it says %q", lines.Text())
	}
	err := cmd.Wait()
	if text := stderr.String(); err == nil || !strings.Contains(text, "500 files") || !strings.Contains(text, "LimitNOFILE") || strings.Count(text, "\n") != 1 {
		t.Errorf("%v: %s", err, text)
	}
}
