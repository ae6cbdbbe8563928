package retrofit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/format"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The examples of grpc-go, in which nobody thought of idemd. Their text is not in this
// repository: the test fetches it through the Go module proxy.
const (
	examplesVersion = "google.golang.org/grpc/examples@v0.0.0-20260825154716-030ee8becb20"
	examplesSum     = "h1:QaNb+nCEoRD91p9ZE1pSGGqdLc3s1AvF7yraBQmg6I8="
)

// A module is a copy of the examples that requires idemd: this checkout.
type module struct {
	source string // the examples as they are
	dir    string // those that are edited
}

func examples(t *testing.T) module {
	t.Helper()
	source, dir := fetch(t), t.TempDir()
	for _, name := range []string{"helloworld", "route_guide", "data"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(source, name))); err != nil {
			t.Fatal(err)
		}
	}
	checkout, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	requirements := strings.Replace(read(t, filepath.Join(checkout, "go.mod")), "module github.com/idemd/idemd", "module google.golang.org/grpc/examples", 1)
	requirements += "\nrequire github.com/idemd/idemd v0.0.0\n\nreplace github.com/idemd/idemd => " + checkout + "\n"
	write(t, filepath.Join(dir, "go.mod"), requirements)
	write(t, filepath.Join(dir, "go.sum"), read(t, filepath.Join(checkout, "go.sum")))
	return module{source, dir}
}

// fetch returns the directory of the examples in the module cache.
func fetch(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", examplesVersion)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	var fetched struct{ Dir, Sum, Error string }
	if decodeErr := json.Unmarshal(out, &fetched); decodeErr != nil || err != nil {
		t.Skipf("NOT TESTED: the examples of grpc-go cannot be fetched, and without them there is nothing to retrofit: go mod download %s: %v %s", examplesVersion, err, fetched.Error)
	}
	if fetched.Sum != examplesSum {
		t.Fatalf("%s has the sum %s, want %s", examplesVersion, fetched.Sum, examplesSum)
	}
	return fetched.Dir
}

// A program is one of the examples, and what is changed in it.
type program struct {
	path  string
	edits []edit
}

// An edit puts lines into a program at a place.
type edit struct {
	place place
	lines []string
}

// A place is the line that begins with a text.
type place struct {
	line    string
	replace bool
}

func before(line string) place  { return place{line: line} }
func instead(line string) place { return place{line: line, replace: true} }

// apply returns the changed lines.
func (e edit) apply(t *testing.T, lines []string) []string {
	t.Helper()
	at := -1
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), e.place.line) {
			if at >= 0 {
				t.Fatalf("%q is there more than once", e.place.line)
			}
			at = i
		}
	}
	if at < 0 {
		t.Fatalf("%q is not there", e.place.line)
	}
	end := at
	if e.place.replace {
		end++
	}
	return slices.Replace(lines, at, end, e.lines...)
}

// edit changes the program in a module, and checks that few lines are changed, counted as diff
// does: those that are new, or are not as they were.
func (p program) edit(t *testing.T, m module) {
	t.Helper()
	// Not of the retrofit: a test does not listen where other machines can connect.
	original := strings.Replace(read(t, filepath.Join(m.source, p.path)), `Sprintf(":%d"`, `Sprintf("127.0.0.1:%d"`, 1)
	lines := strings.Split(original, "\n")
	for _, e := range p.edits {
		lines = e.apply(t, lines)
	}
	formatted, err := format.Source([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if n := changedLines(original, string(formatted)); n > maxChangedLines {
		t.Errorf("%s: %d lines are changed, want at most %d", p.path, n, maxChangedLines)
	}
	write(t, filepath.Join(m.dir, p.path), string(formatted))
}

// changedLines counts the lines of after that are not in before.
func changedLines(before, after string) int {
	left := map[string]int{}
	for line := range strings.Lines(before) {
		left[line]++
	}
	n := 0
	for line := range strings.Lines(after) {
		if left[line]--; left[line] < 0 {
			n++
		}
	}
	return n
}

func (p program) build(t *testing.T, m module) (binary string) {
	t.Helper()
	p.edit(t, m)
	binary = filepath.Join(t.TempDir(), "server")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", binary, "./"+filepath.Dir(p.path))
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// running is a program that runs, and a connection to it.
type running struct {
	cmd   *exec.Cmd
	conn  *grpc.ClientConn
	lines *bufio.Scanner // of its log
	seen  []string
}

func (p program) start(t *testing.T, m module) *running {
	t.Helper()
	port := freePort(t)
	cmd := exec.CommandContext(t.Context(), p.build(t, m), "-port", port)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: cmd, conn: conn, lines: bufio.NewScanner(log)}
	t.Cleanup(func() {
		r.kill()
		_ = conn.Close()
		_ = cmd.Wait()
	})
	return r
}

// kill ends the program, which may have ended.
func (r *running) kill() { _ = r.cmd.Process.Kill() }

// startAndFail returns what the program says when it refuses to start.
func (p program) startAndFail(t *testing.T, m module) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), p.build(t, m), "-port", freePort(t)).CombinedOutput()
	if err == nil {
		t.Fatalf("it started:\n%s", out)
	}
	return string(out)
}

// next reads one line of the log, and keeps it without its time.
func (r *running) next() bool {
	if !r.lines.Scan() {
		return false
	}
	if parts := strings.SplitN(r.lines.Text(), " ", 3); len(parts) == 3 && !strings.HasPrefix(parts[2], "server listening") {
		r.seen = append(r.seen, parts[2])
	}
	return true
}

// await reads the log up to a line.
func (r *running) await(t *testing.T, line string) {
	t.Helper()
	for !slices.Contains(r.seen, line) {
		if !r.next() {
			t.Fatalf("the log ended: %v after %q", r.lines.Err(), r.seen)
		}
	}
}

// logs ends the program, and checks that it has logged this and nothing else.
func (r *running) logs(t *testing.T, want ...string) {
	t.Helper()
	r.kill()
	for r.next() {
		continue
	}
	if !slices.Equal(r.seen, want) {
		t.Errorf("the log is\n%q, want\n%q", r.seen, want)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
