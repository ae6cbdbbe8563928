package job

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// watcherCommand is the only argument of a watcher.
const watcherCommand = "run-watcher"

// A watcher is a process that ends the command if this process dies, however it does. It
// outlives this process for that: it is in a session of its own, and has another name, so that
// what ends this process, Ctrl-C or `killall idemd`, does not end it too. It reads from a pipe
// that only this process can write to, so it reads the end of it when this process is gone.
type watcher struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	gone chan struct{} // closed when it has ended
}

func startWatcher(program string) (*watcher, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("the command's watcher: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(program, watcherCommand)
	cmd.Args[0] = watcherCommand
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("the command's watcher could not be started: %s", err.Error()) // it is not the command that is not found
	}
	started := &watcher{cmd: cmd, pipe: w, gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(started.gone)
	}()
	return started, nil
}

// watch names the process group to end.
func (w *watcher) watch(group int) {
	_, _ = fmt.Fprintln(w.pipe, group) // that it is gone is told by gone
}

// stop returns when the watcher is gone, and has ended nothing.
func (w *watcher) stop() {
	_ = w.cmd.Process.Kill()
	<-w.gone
	_ = w.pipe.Close()
}

// watch is what a watcher does, until it has ended the command that is named on stdin.
func watch(stdin io.Reader) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	if name, err := os.OpenFile("/proc/self/comm", os.O_WRONLY, 0); err == nil { // else it has the program's
		_, _ = name.WriteString(watcherCommand)
		_ = name.Close()
	}
	text, _ := io.ReadAll(stdin)
	if group, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}
