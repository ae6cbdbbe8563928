// Package job runs a command under a right to act that may end: it passes on what the
// command writes and the signals that arrive, keeps the end of its output, and ends it when
// it must not go on.
package job

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Job is a command to run.
type Job struct {
	Args []string
	Env  []string // name=value, on top of this process's
	// Stdin is the command's if it is a file. Stdout and Stderr get what the command writes,
	// as it comes; if they take no more, the command goes on without them.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// KillAfter is how long the command has to end after it was asked to, and how long what
	// it started may keep its output open once it has ended.
	KillAfter time.Duration
}

// An Ending is how a command ended.
type Ending struct {
	Code    int  // its exit code, or 128 and the number of the signal that ended it
	Stopped bool // it was asked to end, because the right to act had
	Stdout  Output
	Stderr  Output
}

// Run runs the command until it has ended. Signals are passed on to it and all that it
// started; when ctx ends they get SIGTERM and, KillAfter later, SIGKILL. An error says that
// the command did not start.
func (j *Job) Run(ctx context.Context, signals <-chan os.Signal) (Ending, error) {
	// The command is to die with this process, and the kernel goes by the thread that
	// started it: that must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stdout, stderr := newTail(j.Stdout), newTail(j.Stderr)
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	cmd.Env = append(os.Environ(), j.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = j.Stdin, stdout, stderr
	cmd.WaitDelay = j.KillAfter
	g := group{alone: !isTerminal(j.Stdin)}
	cmd.SysProcAttr = attributes(g.alone)
	if err := cmd.Start(); err != nil {
		return Ending{}, err
	}
	g.pid = cmd.Process.Pid
	ended, stopped := make(chan struct{}), false
	var watching sync.WaitGroup
	watching.Go(func() { stopped = g.watch(ctx, signals, ended, j.KillAfter) })
	_ = cmd.Wait() // its state tells all
	close(ended)
	watching.Wait()
	if stopped {
		g.send(syscall.SIGKILL) // what outlived the command
	}
	return Ending{Code: exitCode(cmd.ProcessState), Stopped: stopped, Stdout: stdout.output(), Stderr: stderr.output()}, nil
}

// NotFound reports whether an error of Run says that there is no such command.
func NotFound(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// A group is the command and what it started. On a terminal it is not alone in its process
// group: it could not read from the terminal then, and what is typed there, such as
// Ctrl-C, reaches it without our help.
type group struct {
	pid   int
	alone bool
}

// watch passes signals on, and ends the group when ctx ends, until the command has ended.
func (g *group) watch(ctx context.Context, signals <-chan os.Signal, ended <-chan struct{}, killAfter time.Duration) (stopped bool) {
	over := ctx.Done()
	var kill <-chan time.Time
	for {
		select {
		case <-ended:
			return stopped
		case sig := <-signals:
			if sig, ok := sig.(syscall.Signal); ok && (g.alone || sig != syscall.SIGINT) {
				g.send(sig)
			}
		case <-over:
			stopped, over = true, nil
			g.send(syscall.SIGTERM)
			kill = time.After(killAfter)
		case <-kill:
			g.send(syscall.SIGKILL)
		}
	}
}

// send sends a signal. It may be too late; that does no harm.
func (g *group) send(sig syscall.Signal) {
	if g.alone {
		_ = syscall.Kill(-g.pid, sig)
		return
	}
	_ = syscall.Kill(g.pid, sig)
}

func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
