package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns what is typed into a terminal, and the terminal.
func openTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return keyboard, terminal
}

// on makes a process the first one of a terminal.
func on(terminal *os.File) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.Stdin = terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
}

// shellOn is a shell that is the first process of a terminal.
func shellOn(t *testing.T, terminal *os.File, dir, script string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	shell := exec.CommandContext(ctx, "sh", "-c", script)
	shell.Dir, shell.WaitDelay = dir, time.Second
	on(terminal)(shell)
	return shell
}

func TestRunOnATerminal(t *testing.T) {
	s := serve(t, t.TempDir())
	t.Run("signals", func(t *testing.T) { testTerminalSignals(t, s) })
	t.Run("typed", func(t *testing.T) { testTerminalTyped(t, s) })
	t.Run("lease lost", func(t *testing.T) { testTerminalLeaseLost(t, s) })
}

// testTerminalSignals checks that signals reach the command and what it started, once, whether
// they are sent or typed.
func testTerminalSignals(t *testing.T, s *served) {
	for name, send := range map[string]func(*guarded, io.Writer) error{
		"INT":  func(g *guarded, _ io.Writer) error { return g.cmd.Process.Signal(syscall.SIGINT) },
		"TERM": func(g *guarded, _ io.Writer) error { return g.cmd.Process.Signal(syscall.SIGTERM) },
		"QUIT": func(g *guarded, _ io.Writer) error { return g.cmd.Process.Signal(syscall.SIGQUIT) },
		"typed INT": func(_ *guarded, keyboard io.Writer) error {
			_, err := io.WriteString(keyboard, "\x03")
			return err
		},
		"typed QUIT": func(_ *guarded, keyboard io.Writer) error {
			_, err := io.WriteString(keyboard, "\x1c")
			return err
		},
	} {
		keyboard, terminal := openTerminal(t)
		dir := t.TempDir()
		up := fifo(t, dir, "up")
		sig := strings.TrimPrefix(name, "typed ")
		script := `trap 'echo child; exit' ` + sig + `; echo up >up; while :; do sleep 0.05; done`
		script = `trap 'echo parent' ` + sig + "; sh -c \"" + script + "\"; exit 9"
		g := guardAs(t, dir, s.addr, "--kill-after=1s --key="+strings.ReplaceAll(name, " ", "-"), script, on(terminal))
		readFifo(t, up)
		if err := send(g, keyboard); err != nil {
			t.Fatal(err)
		}
		r := g.wait()
		if r.code != 9 || r.stdout != "child\nparent\n" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// testTerminalTyped checks that the command reads from the terminal, that Ctrl-Z stops neither it
// nor the run, and that whoever started the run reads from the terminal afterwards, also if the
// command could not be started.
func testTerminalTyped(t *testing.T, s *served) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	up, noProgram := fifo(t, dir, "up"), filepath.Join(dir, "no-program")
	if err := os.WriteFile(noProgram, []byte{0}, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		command, stdout string
		typed           []string
	}{
		{noProgram, "code 126\nthen two\n", []string{"two\n"}},
		{`sh -c 'echo up >up; read x; echo got $x; exit 3'`, "got one\ncode 3\nthen two\n", []string{"\x1aone\n", "two\n"}},
		{`sh -c 'read x </dev/tty || echo not in the foreground' </dev/null`, "not in the foreground\ncode 0\nthen two\n", []string{"two\n"}},
	} {
		keyboard, terminal := openTerminal(t)
		shell := shellOn(t, terminal, dir, fmt.Sprintf("%s run --addr=%s --key=typed-%d -- ", path, s.addr, i)+test.command+"; echo code $?; echo up >up; read y; echo then $y")
		go func() {
			for _, line := range test.typed {
				_, _ = os.ReadFile(up) // it reads next
				_, _ = io.WriteString(keyboard, line)
			}
		}()
		if out, err := shell.Output(); string(out) != test.stdout || err != nil {
			t.Errorf("%q, %v, want %q", out, err, test.stdout)
		}
	}
}

// testTerminalLeaseLost checks that what the command started ends too.
func testTerminalLeaseLost(t *testing.T, s *served) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	keyboard, terminal := openTerminal(t)
	dir := t.TempDir()
	alive := fifo(t, dir, "alive")
	const command = `sh -c "exec >alive; echo up; sleep 1000" & wait`
	// The shell stays: with the terminal's first process all others would end.
	shell := shellOn(t, terminal, dir, path+" run --addr="+s.addr+" --key=terminal-lost --lease=3s --kill-after=1s -- sh -c '"+command+"'; echo code $?; read y")
	var stdout bytes.Buffer
	shell.Stdout = &stdout
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	lines := openFifo(t, alive)
	if line, err := lines.ReadString('\n'); line != "up\n" {
		t.Fatal(line, err)
	}
	s.run(t, "record", "force-release", "--id=terminal-lost", "--any-fence", "--reason=stuck").ok(t)
	if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	_, _ = io.WriteString(keyboard, "\n")
	if err := shell.Wait(); err != nil || stdout.String() != "code 124\n" {
		t.Errorf("%q, %v", stdout.String(), err)
	}
}
