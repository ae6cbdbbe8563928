package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// TestReadmeTour runs the commands of each page in one shell, against a server on free
// ports, and compares what they print.
func TestReadmeTour(t *testing.T) {
	for _, page := range readmePages(t) {
		if blocks := page.blocks(t, "tour"); len(blocks) > 0 {
			t.Run(page.name, func(t *testing.T) { startShell(t).tour(t, blocks, strings.NewReplacer()) })
		}
	}
}

// TestReadmeDatabase does with those that have a database.
func TestReadmeDatabase(t *testing.T) {
	t.Setenv("IDEMD_STORE", pgtest.Shared(t).NewDatabase(t))
	ports := strings.NewReplacer("127.0.0.1:7611", freeAddr(t), "127.0.0.1:7612", freeAddr(t))
	startShell(t).tour(t, readmeBlocks(t, "database"), ports)
}

// TestReadmeRegions does with those that have three regions.
func TestReadmeRegions(t *testing.T) {
	ports := strings.NewReplacer("127.0.0.1:7621", freeAddr(t), "127.0.0.1:7622", freeAddr(t), "127.0.0.1:7623", freeAddr(t))
	startShell(t).tour(t, readmeBlocks(t, "regions"), ports)
}

// tour types the commands, with other ports. A block without prompts is one command, without output.
func (s *shell) tour(t *testing.T, blocks []string, ports *strings.Replacer) {
	t.Helper()
	for _, block := range blocks {
		if !strings.HasPrefix(block, "$ ") {
			s.run(t, ports.Replace(block), "")
			continue
		}
		for _, step := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want, _ := strings.Cut(strings.TrimSuffix(step, "\n")+"\n", "\n")
			got := s.run(t, ports.Replace(command), want)
			if shape(got) != shape(want) {
				t.Errorf("$ %s\ngot:\n%s\nthe page has:\n%s", command, got, want)
			}
		}
	}
}

// shapes replaces what differs from run to run.
var shapes = []struct{ pattern, with string }{
	{` --addr 127\.0\.0\.1:\d+`, ``},
	{`127\.0\.0\.1:\d+`, `ADDR`},
	{`(data directory  )[^,\n]*`, `${1}PLACE`},
	{`(database  ).*`, `${1}PLACE`},
	{`\d{4}-\d\d-\d\dT[0-9:.]+Z`, `TIME`},
	{`\b\d{16}\b`, `FENCE`},
	{`\b[0-9a-f]{32}\b`, `STORE`},
	{` {2,}`, `  `},
	{`(age +|in |after +)[0-9a-zµ.]+s\b`, `${1}DURATION`},
	{`(?m)^bash: line \d+: .*(Killed|Terminated) .*\n`, ``},
}

func shape(text string) string {
	for _, s := range shapes {
		text = regexp.MustCompile(s.pattern).ReplaceAllString(text, s.with)
	}
	return text
}

// shell is one shell in a directory that has bin/idemd.
type shell struct {
	stdin io.Writer
	lines *bufio.Scanner
}

func startShell(t *testing.T) *shell {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "bin", "idemd")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--norc")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it put into the background ends with it
	cmd.Dir = dir
	addr, admin := freeAddr(t), freeAddr(t)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "IDEMD_GRPC_ADDR="+addr, "IDEMD_ADDR="+addr, "IDEMD_ADMIN_ADDR="+admin)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return &shell{stdin: stdin, lines: bufio.NewScanner(stdout)}
}

// run types a command and returns what it prints. A server that was put into the
// background is given until it has printed as many lines as are wanted.
func (s *shell) run(t *testing.T, command, want string) string {
	t.Helper()
	const mark = "-- done --"
	inBackground := strings.HasSuffix(command, "&")
	if inBackground {
		fmt.Fprintln(s.stdin, command)
	} else {
		fmt.Fprintf(s.stdin, "{ %s\n} 2>&1\necho '%s'\n", command, mark)
	}
	var got strings.Builder
	for n := 0; !inBackground || n < strings.Count(want, "\n"); n++ {
		if !s.lines.Scan() {
			t.Fatalf("the shell ended in %q: %v\n%s", command, s.lines.Err(), got.String())
		}
		if s.lines.Text() == mark {
			break
		}
		got.WriteString(s.lines.Text() + "\n")
	}
	return got.String()
}

// freeAddr is an address that nobody listens on, a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestReadmeCompiles builds the Go programs of the pages.
func TestReadmeCompiles(t *testing.T) {
	for i, source := range readmeBlocks(t, "compile") {
		path := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "vet", path).CombinedOutput(); err != nil {
			t.Errorf("program %d: %v\n%s\n%s", i+1, err, out, source)
		}
	}
}

// TestReadmeScript runs the script of the command line's page as cron does, with a job that fails or not
// and a check that finds its work or not; and as whoever has all scripts end at the first error.
func TestReadmeScript(t *testing.T) {
	for _, shell := range []string{"sh", "sh -eu"} {
		t.Run(shell, func(t *testing.T) { readmeScript(t, shell) })
	}
}

func readmeScript(t *testing.T, shell string) {
	server := serve(t, t.TempDir())
	sh := startShell(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(readmeBlocks(t, "script")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	sh.run(t, `export IDEMD_ADDR=`+server.addr+`; printf '#!/bin/sh\necho ran; [ -e works ]' >make-report; printf '#!/bin/sh\n[ -e found ]' >check-report; chmod +x *-report`, "")
	for _, step := range []struct{ before, want string }{
		{"true", "exit code 1, ran 1"},
		{"touch works", "exit code 0, ran 1"},                 // checked first: nothing found
		{"true", "exit code 0, ran 0"},                        // done
		{"export IDEMD_NAMESPACE=shop", "exit code 1, ran 0"}, // refused: there is no such namespace
		{"bin/idemd namespace create shop; rm works", "exit code 1, ran 1"},
		{"touch found", "exit code 0, ran 0"}, // checked first: it had been done
		{"rm found", "exit code 0, ran 0"},
	} {
		sh.run(t, step.before, "")
		got := sh.run(t, shell+` `+script+` >out 2>&1; echo "exit code $?, ran $(grep -c '^ran$' out)"`, "")
		if got != step.want+"\n" {
			t.Errorf("after %q: %swant %s\n%s", step.before, got, step.want, sh.run(t, "cat out", ""))
		}
	}
}
