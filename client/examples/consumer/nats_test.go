package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startNATS starts a server of the test's own, and returns where it serves.
func startNATS(t *testing.T) (url string) {
	t.Helper()
	binary, err := exec.LookPath("nats-server")
	if err != nil {
		binary, err = exec.LookPath("/usr/sbin/nats-server") // not in the PATH of whoever is not root
	}
	if err != nil {
		t.Fatal("there is no nats-server: .ci/nats installs it")
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), binary, "--jetstream", "--store_dir", dir, "--addr", "127.0.0.1", "--port", "-1",
		"--ports_file_dir", dir, "--log", filepath.Join(dir, "log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	until(t, "NATS serves", func() bool {
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

// startIdemd serves an embedded store with the namespace of orders.
func startIdemd(t *testing.T) (addr string) {
	t.Helper()
	embedded, err := pebblestore.Open(t.TempDir(), pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(server.Config{Backend: embedded, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served, embedded.Close()); err != nil {
			t.Error(err)
		}
	})
	_, err = embedded.CreateNamespace(t.Context(), store.Namespace{Name: "orders", Retention: 15 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return lis.Addr().String()
}

func dial(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Drain(context.Background()), c.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// until waits for what another process does.
func until(t *testing.T, what string, is func() bool) {
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
