package regiontest

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
	"time"
)

// readyWithin is how long a server may take until it serves.
const readyWithin = 20 * time.Second

// servesOn begins the line that says that the server is ready.
const servesOn = "idemd serves on "

var (
	buildOnce sync.Once
	buildPath string
	errBuild  error
)

// Binary builds idemd, once for all tests of the process. [RemoveBinary] removes it. With -short
// the test is skipped.
func Binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: idemd runs in processes of its own here, for long, and the race detector does not see those; 'make test' plays it")
	}
	buildOnce.Do(func() {
		dir, err := os.MkdirTemp("", "idemd-regions-")
		if err != nil {
			errBuild = err
			return
		}
		buildPath = filepath.Join(dir, "idemd")
		out, err := exec.Command("go", "build", "-o", buildPath, "github.com/idemd/idemd/cmd/idemd").CombinedOutput()
		if err != nil {
			errBuild = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if errBuild != nil {
		t.Fatal(errBuild)
	}
	return buildPath
}

// RemoveBinary is for TestMain, after the tests.
func RemoveBinary() {
	if buildPath != "" {
		_ = os.RemoveAll(filepath.Dir(buildPath))
	}
}

// Process is a run of idemd.
type Process struct {
	cmd    *exec.Cmd
	lines  chan string // of standard output; closed at its end
	output *lockedBuffer
	done   chan struct{}
	err    error // once done
}

func start(t testing.TB, at site, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: at.command(Binary(t), args...), lines: make(chan string, 1000), output: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Env = withoutVariables(os.Environ())
	p.cmd.Stderr = p.output
	dieWithParent(p.cmd)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			fmt.Fprintln(p.output, scanner.Text())
			select {
			case p.lines <- scanner.Text():
			default: // nobody reads them
			}
		}
		close(p.lines)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(p.Kill)
	return p
}

// withoutVariables leaves out what would change the program's defaults.
func withoutVariables(environment []string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "IDEMD_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// Kill ends the process as kill -9 does, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Line waits for a line of output that begins with prefix, and returns it; false if there was
// none when the process ended, or in time.
func (p *Process) Line(prefix string, within time.Duration) (string, bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok || strings.HasPrefix(line, prefix) {
				return line, ok
			}
		case <-timer.C:
			return "", false
		}
	}
}

// Wait returns the exit code, or -1 if the process was killed or does not end in time.
func (p *Process) Wait(within time.Duration) int {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-timer.C:
		return -1
	}
}

// Output is all that it has said.
func (p *Process) Output() string { return p.output.String() }

// lockedBuffer is a bytes.Buffer that a process still writes to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
