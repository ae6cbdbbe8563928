// Package natstest gives the examples' tests a real NATS: a server of their own, with JetStream, in a temporary directory.
package natstest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Start starts a server that ends with the test, and returns where it serves.
func Start(t testing.TB) (url string) {
	t.Helper()
	binary, err := exec.LookPath("nats-server")
	if err != nil {
		binary, err = exec.LookPath("/usr/sbin/nats-server") // not in the PATH of whoever is not root
	}
	if err != nil {
		t.Fatal("there is no nats-server: .ci/nats installs it")
	}
	dir := t.TempDir()
	// Not with the test's context, which ends before what the test has to clean up.
	cmd := exec.Command(binary, "--jetstream", "--store_dir", dir, "--addr", "127.0.0.1", "--port", "-1",
		"--ports_file_dir", dir, "--log", filepath.Join(dir, "log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	Until(t, "NATS serves", func() bool {
		found, _ := filepath.Glob(filepath.Join(dir, "*.ports"))
		var ports struct{ NATS []string }
		if len(found) == 1 {
			text, _ := os.ReadFile(found[0])
			_ = json.Unmarshal(text, &ports) // it may be half written
		}
		if len(ports.NATS) > 0 {
			url = ports.NATS[0]
		}
		return url != ""
	})
	return url
}

// Until waits for what another process does.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	end := time.After(30 * time.Second)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !is() {
		select {
		case <-again.C:
		case <-end:
			t.Fatal("not within 30 s: " + what)
		}
	}
}
