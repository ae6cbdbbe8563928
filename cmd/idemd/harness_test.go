package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
)

// result is what a run of the program left behind.
type result struct {
	code           int
	stdout, stderr string
}

// run runs the program in process, with nothing on standard input.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return runWith(t, "", args...)
}

func runWith(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := program{name: "idemd", exit: exitUnexpectedly(t)}
	if len(args) > 0 && (args[0] == "bench" || args[0] == "run") { // it starts the program itself
		exe, err := binary()
		if err != nil {
			t.Fatal(err)
		}
		p.exe = exe
	}
	code := p.Run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// ok fails the test unless the run ended well and said nothing on standard error.
func (r result) ok(t *testing.T) string {
	t.Helper()
	if r.code != exitOK || r.stderr != "" {
		t.Fatalf("exit code %d, want 0\n%s%s", r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fails checks the exit code, and that one clear line says why and nothing else is said.
func (r result) fails(t *testing.T, code int, parts ...string) {
	t.Helper()
	line, rest, found := strings.Cut(r.stderr, "\n")
	if r.code != code || r.stdout != "" || !found || rest != "" || !strings.HasPrefix(line, "idemd: ") {
		t.Fatalf("exit code %d, want %d with one line on standard error\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			t.Errorf("%q does not say %q", line, part)
		}
	}
}

func exitUnexpectedly(t *testing.T) func(int) {
	return func(code int) { t.Errorf("the store ended the process with %d", code) }
}

// served is `idemd serve`, in process.
type served struct {
	addr   string
	banner []string
	stderr *lockedBuffer
	stop   func() int // ends it in order and returns the exit code
}

// serve starts the server on free ports over a directory and returns when it is ready.
func serve(t *testing.T, dir string, args ...string) *served {
	t.Helper()
	return serveOn(t, append([]string{"--data-dir=" + dir}, args...)...)
}

// serveOn is serve on the store that args name.
func serveOn(t *testing.T, args ...string) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reader, writer := io.Pipe()
	args = append([]string{"serve", "--grpc-addr=127.0.0.1:0", "--admin-addr="}, args...)
	code := make(chan int, 1)
	stderr := &lockedBuffer{}
	go func() {
		p := program{name: "idemd", exit: exitUnexpectedly(t)}
		code <- p.Run(ctx, args, strings.NewReader(""), writer, stderr)
		_ = writer.Close()
	}()
	s := &served{stderr: stderr, stop: sync.OnceValue(func() int { cancel(); return <-code })}
	t.Cleanup(func() { s.stop() })
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		s.banner = append(s.banner, lines.Text())
		if strings.HasPrefix(lines.Text(), "  idemd complete") || strings.HasPrefix(lines.Text(), "  callers ") { // its last line
			s.addr = strings.TrimPrefix(s.banner[0], servesOn)
			go io.Copy(io.Discard, reader) //nolint:errcheck // what comes after the banner
			return s
		}
	}
	t.Fatalf("idemd serve ended with %d before it was ready:\n%s%s", s.stop(), strings.Join(s.banner, "\n"), stderr.String())
	return nil
}

// lockedBuffer is a bytes.Buffer that a server may still write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
