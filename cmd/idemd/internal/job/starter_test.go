package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// programs are what this program is started as by tests.
var programs = map[string]func(){"run-untold": runUntold, "run-files": runFiles}

// TestRunDiesAtOnce checks that nothing outlives a run that dies before the watcher knows the
// command.
func TestRunDiesAtOnce(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	run := exec.Command(os.Args[0], "run-untold")
	run.Stdin = w // and so the command's
	told, err := run.StdoutPipe()
	if err = errors.Join(err, run.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := told.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = r.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // the command has time to begin
	lines := bufio.NewReader(r)
	group, _ := lines.ReadString('\n')
	_ = run.Process.Kill()
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	rest, err := io.ReadAll(lines) // until all are gone
	if group+string(rest) != "" || err != nil {
		t.Errorf("%q%q, %v", group, rest, err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(group)); err == nil {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	_ = run.Wait()
}

// runUntold runs a command that leaves something behind, and stands still when the watcher is to
// be told of it.
func runUntold() {
	w, err := startWatcher(os.Args[0])
	if err != nil {
		return
	}
	w.pipe = untold{w.pipe}
	j := Job{
		Args:  []string{"sh", "-c", "exec 9>&0; (echo $$; exec sleep 1000) >&9 & wait"},
		Stdin: os.Stdin, Stdout: failing{}, Stderr: failing{}, Helper: os.Args[0], KillAfter: time.Second,
	}
	_, _ = j.run(context.Background(), nil, w, syscall.Kill)
}

type untold struct{ io.WriteCloser }

func (untold) Write([]byte) (int, error) {
	fmt.Println("told")
	select {}
}

// TestRunHasItsStarter checks that a command is not taken for ended that did not begin.
func TestRunHasItsStarter(t *testing.T) {
	j := Job{Args: []string{"true"}, Stdout: failing{}, Stderr: failing{}, Helper: "true"} // does not call Help
	if _, err := j.Run(context.Background(), nil); err == nil || NotFound(err) || !strings.Contains(err.Error(), "starter") {
		t.Error(err)
	}
}

// TestRunSaysWhyItDidNotBegin checks files that only turn out to be no programs when they are to
// run.
func TestRunSaysWhyItDidNotBegin(t *testing.T) {
	for content, want := range map[string]error{"\x00": syscall.ENOEXEC, "#!/no-such-interpreter": os.ErrNotExist} {
		file := t.TempDir() + "/file"
		if err := os.WriteFile(file, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := start(file); !errors.Is(err, want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// TestRunPassesFilesOn checks that a command gets the open files that this process got, under
// their numbers, and none of ours.
func TestRunPassesFilesOn(t *testing.T) {
	cmd := exec.Command(os.Args[0], "run-files")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w, w, w}
	if err := errors.Join(cmd.Run(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); string(text) != "3\n4\n5\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// runFiles runs a command that writes to all the files that it has got.
func runFiles() {
	_, _ = start("sh", "-c", "for n in 3 4 5 6 7 8 9; do (echo $n >&$n) 2>/dev/null; done")
}
