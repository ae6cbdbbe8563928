package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var buildDir string

func TestMain(m *testing.M) {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "IDEMD_") && name != seedVariable {
			_ = os.Unsetenv(name) // it would change the defaults that are tested
		}
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var err error
	if buildDir, err = os.MkdirTemp("", "idemd-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(buildDir)
	if err := os.Chmod(buildDir, 0o755); err != nil { // for a test that runs the program as another user
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// binary builds the program, once for all tests that run it as a process.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "idemd")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// child is `idemd serve` as a process of its own.
type child struct {
	cmd    *exec.Cmd
	addr   string
	stderr bytes.Buffer // only read after wait
}

// startChild starts the server on a free port and returns when it is ready.
func startChild(t *testing.T, dir string) *child {
	t.Helper()
	return startChildOn(t, "--data-dir="+dir)
}

// startChildOn is startChild on the store that args name.
func startChildOn(t *testing.T, args ...string) *child {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{}
	args = append([]string{"serve", "--grpc-addr=127.0.0.1:0", "--admin-addr="}, args...)
	c.cmd = exec.CommandContext(t.Context(), path, args...)
	c.cmd.Stderr = &c.stderr
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if addr, ok := strings.CutPrefix(lines.Text(), servesOn); ok {
			c.addr = addr
			return c
		}
	}
	err = c.cmd.Wait()
	t.Fatalf("idemd serve ended before it was ready: %v\n%s", err, c.stderr.String())
	return nil
}

// kill ends the process at once, as kill -9 does. The first of several calls counts.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// wait returns when the process is gone.
func (c *child) wait() { _ = c.cmd.Wait() }
