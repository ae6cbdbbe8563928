package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// TestReadmeGuarded runs the service and the caller that the client's page begins with, first as they are and then
// without the line of Observe, and compares what they print with what the page has.
func TestReadmeGuarded(t *testing.T) {
	page := readmePageOf(t, "client/README.md")
	programs, want := page.blocks(t, "compile"), page.blocks(t, "prints")
	if len(programs) < 2 || len(want) != 3 {
		t.Fatalf("%d programs, and %d blocks of what they print", len(programs), len(want))
	}
	addrs := strings.NewReplacer("127.0.0.1:7600", serve(t, t.TempDir()).addr, "127.0.0.1:7700", freeAddr(t))
	observing, caller := addrs.Replace(programs[0]), build(t, addrs.Replace(programs[1]))
	enforcing := regexp.MustCompile(`(?m)^.*client\.Observe\(\).*\n`).ReplaceAllString(observing, "")
	if enforcing == observing {
		t.Fatal("the service does not observe at first")
	}

	const command = "$ go run caller.go\n"
	service := startProgram(t, build(t, observing))
	first := output(t, caller)
	service.await(t, " recorded ") // in the background, as it only observes
	second := output(t, caller)
	service.await(t, " replayed ")
	checkPrinted(t, want[0], command+first+command+second)
	checkPrinted(t, want[1], "$ go run service.go\n"+service.end())
	service = startProgram(t, build(t, enforcing))
	checkPrinted(t, want[2], command+output(t, caller)+command+output(t, caller))
	service.end()
}

// TestReadmeWithoutIdemd starts each service of the pages without an idemd: it says so, and serves.
func TestReadmeWithoutIdemd(t *testing.T) {
	services := 0
	for _, source := range readmeBlocks(t, "compile") {
		if !strings.Contains(source, ".Serve(") && !strings.Contains(source, ".ListenAndServe(") {
			continue
		}
		services++
		addrs := strings.NewReplacer("127.0.0.1:7600", "127.0.0.1:1", "127.0.0.1:7700", freeAddr(t), "127.0.0.1:7780", freeAddr(t))
		if printed := startProgram(t, build(t, addrs.Replace(source))).end(); !strings.Contains(printed, "idemd is not ready") {
			t.Errorf("without an idemd this prints:\n%s\n%s", printed, source)
		}
	}
	if services < 2 {
		t.Errorf("the pages have %d services, want one of gRPC and one of HTTP at least", services)
	}
}

// TestReadmeGuardRow runs the program of the page about guards in a database, twice.
func TestReadmeGuardRow(t *testing.T) {
	page := readmePageOf(t, "client/guard/README.md")
	programs, want := page.blocks(t, "compile"), page.blocks(t, "prints")
	if len(programs) != 1 || len(want) != 2 {
		t.Fatalf("%d programs, and %d blocks of what they print", len(programs), len(want))
	}
	source := regexp.MustCompile(`"postgres://[^"]*"`).ReplaceAllString(programs[0], strconv.Quote(pgtest.Shared(t).NewDatabase(t)))
	path := build(t, strings.ReplaceAll(source, "127.0.0.1:7600", serve(t, t.TempDir()).addr))
	for _, block := range want {
		checkPrinted(t, block, "$ go run pay.go\n"+output(t, path))
	}
}

func readmePageOf(t *testing.T, name string) readmePage {
	t.Helper()
	for _, p := range readmePages(t) {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("there is no page %s", name)
	return readmePage{}
}

// build builds a page's program.
func build(t *testing.T, source string) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "program")
	if err := os.WriteFile(path+".go", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", path, path+".go").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, source)
	}
	return path
}

// output is all that a program prints that ends by itself.
func output(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// pageProgram is a program of a page that serves.
type pageProgram struct {
	cmd     *exec.Cmd
	lines   *bufio.Scanner
	printed strings.Builder
}

// startProgram starts one, and returns when it serves.
func startProgram(t *testing.T, path string) *pageProgram {
	t.Helper()
	p := &pageProgram{cmd: exec.Command(path)}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(log)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end() })
	p.await(t, " serves on ")
	return p
}

// await reads what the program prints, up to a line that has a text.
func (p *pageProgram) await(t *testing.T, text string) {
	t.Helper()
	for p.next() {
		if strings.Contains(p.lines.Text(), text) {
			return
		}
	}
	t.Fatalf("the program ended before it printed %q:\n%s", text, p.printed.String())
}

func (p *pageProgram) next() bool {
	if !p.lines.Scan() {
		return false
	}
	p.printed.WriteString(p.lines.Text() + "\n")
	return true
}

// end ends the program, and returns what it printed.
func (p *pageProgram) end() string {
	_ = p.cmd.Process.Kill()
	for p.next() { // it is all read before Wait closes the pipe
	}
	_ = p.cmd.Wait()
	return p.printed.String()
}

// checkPrinted compares commands, and what they printed, with a block of a page.
func checkPrinted(t *testing.T, want, got string) {
	t.Helper()
	logTime := regexp.MustCompile(`(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d `)
	shaped := func(text string) string { return shape(logTime.ReplaceAllString(text, "")) }
	if shaped(got) != shaped(want) {
		t.Errorf("this is printed:\n%s\nthe page has:\n%s", got, want)
	}
}
