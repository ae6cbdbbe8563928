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

// WatcherCommand is the only argument of the program that a [Job] starts as its watcher. It
// calls [Watch].
const WatcherCommand = "run-watcher"

// A watcher is a process that ends the command if this process dies, however it does. It
// outlives this process for that: it is in a session of its own, and has another name, so that
// what ends this process, Ctrl-C or `killall idemd`, does not end it too. It reads from a pipe
// that only this process can write to, so it reads the end of it when this process is gone.
type watcher struct {
	cmd  *exec.Cmd
	pipe *os.File
	gone chan struct{} // closed when it has ended
}

func startWatcher(program string) (*watcher, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("the command's watcher: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(program, WatcherCommand)
	cmd.Args[0] = WatcherCommand
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

// watch names the process group to end. If this process dies before that, the kernel ends the
// command, which has hardly begun; see attributes.
func (w *watcher) watch(group int) {
	_, _ = fmt.Fprintln(w.pipe, group) // that it is gone is told by gone
}

// stop returns when the watcher is gone, and has ended nothing.
func (w *watcher) stop() {
	_ = w.cmd.Process.Kill()
	<-w.gone
	_ = w.pipe.Close()
}

// Watch is what a watcher does, until it has ended the command that is named on stdin.
func Watch(stdin io.Reader) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	if name, err := os.OpenFile("/proc/self/comm", os.O_WRONLY, 0); err == nil { // else it has the program's
		_, _ = name.WriteString(WatcherCommand)
		_ = name.Close()
	}
	text, _ := io.ReadAll(stdin)
	if group, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}
