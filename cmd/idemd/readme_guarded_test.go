package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeGuarded runs the service and the caller that the client's page begins with, first as they are and then
// with the line of Observe taken out, and compares what they print with what the page has.
func TestReadmeGuarded(t *testing.T) {
	page := readmePageOf(t, "client/README.md")
	programs, want := page.blocks(t, "compile"), page.blocks(t, "guarded")
	if len(programs) < 2 || len(want) != 3 {
		t.Fatalf("%d programs, and %d blocks of what they print", len(programs), len(want))
	}
	addrs := strings.NewReplacer("127.0.0.1:7600", serve(t, t.TempDir()).addr, "127.0.0.1:7700", freeAddr(t))
	observing, caller := addrs.Replace(programs[0]), build(t, addrs.Replace(programs[1]))
	enforcing := regexp.MustCompile(`(?m)^.*client\.Observe\(\).*\n`).ReplaceAllString(observing, "")
	if enforcing == observing {
		t.Fatal("the service does not observe at first")
	}

	service := startProgram(t, build(t, observing))
	checkPrinted(t, want[0], output(t, caller))
	checkPrinted(t, want[1], service.end())
	service = startProgram(t, build(t, enforcing))
	checkPrinted(t, want[2], output(t, caller))
	service.end()

	nowhere := strings.ReplaceAll(enforcing, addrs.Replace("127.0.0.1:7600"), "127.0.0.1:1")
	if printed := startProgram(t, build(t, nowhere)).end(); !strings.Contains(printed, "idemd is not ready") {
		t.Errorf("without an idemd the service prints only:\n%s", printed)
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
	printed bytes.Buffer
	ended   chan struct{}
}

// startProgram starts one, and returns when it serves.
func startProgram(t *testing.T, path string) *pageProgram {
	t.Helper()
	p := &pageProgram{cmd: exec.Command(path), ended: make(chan struct{})}
	serves := make(chan struct{})
	p.cmd.Stderr = writerFunc(func(b []byte) (int, error) {
		if p.printed.Write(b); bytes.Contains(b, []byte(" serves on ")) {
			close(serves)
		}
		return len(b), nil
	})
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() { p.end() })
	select {
	case <-serves:
	case <-p.ended:
		t.Fatalf("the program ended:\n%s", p.printed.String())
	}
	return p
}

// end ends the program, and returns what it printed.
func (p *pageProgram) end() string {
	_ = p.cmd.Process.Kill()
	<-p.ended
	return p.printed.String()
}

// checkPrinted compares what a program printed with a block that begins with the command.
func checkPrinted(t *testing.T, block, printed string) {
	t.Helper()
	logTime := regexp.MustCompile(`(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d `)
	shaped := func(text string) string { return shape(logTime.ReplaceAllString(text, "")) }
	if command, want, _ := strings.Cut(block, "\n"); shaped(printed) != shaped(want) {
		t.Errorf("%s\nprints:\n%s\nthe page has:\n%s", command, printed, want)
	}
}
