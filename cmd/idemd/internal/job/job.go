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
)

// A Job is a command to run.
type Job struct {
	Args []string
	Env  []string // name=value, on top of this process's
	// Stdin is the command's if it is a file. Stdout and Stderr get what the command writes,
	// as it comes; if they take no more, the command goes on without them.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Until, if not nil, is until when the command may act. It moves on.
	Until func() time.Time
	// KillAfter is how long the command has to end after it was asked to. It is asked so long
	// before Until.
	KillAfter time.Duration
	// Helper is a program that calls [Help] first: it starts the command, and ends it if this
	// process dies.
	Helper string
}

// An Ending is how a command ended.
type Ending struct {
	Code      int  // its exit code, or 128 and the number of the signal that ended it
	Signalled bool // a signal ended it; a command may also exit with such a code by itself
	Stopped   bool // it was asked to end, because the right to act had, or was about to
	Told      bool // a signal that asks to end was passed on to it
	Stdout    Output
	Stderr    Output
	// Passed is closed when Stdout and Stderr of the job have taken all that they take.
	Passed <-chan struct{}
}

// lingering is how long what the command started may keep its output open once it has ended.
const lingering = 2 * time.Second

// Run runs the command until it has ended. Signals are passed on to it and all that it
// started. When Until comes near, or ctx ends, they get SIGTERM; KillAfter later, at the latest
// when it is Until, they get SIGKILL. An error says that the command did not start.
func (j *Job) Run(ctx context.Context, signals <-chan os.Signal) (Ending, error) {
	w, err := startWatcher(j.Helper)
	if err != nil {
		return Ending{}, err
	}
	defer w.stop()
	return j.run(ctx, signals, w, syscall.Kill)
}

func (j *Job) run(ctx context.Context, signals <-chan os.Signal, w *watcher, kill func(int, syscall.Signal) error) (Ending, error) {
	path, err := exec.LookPath(j.Args[0])
	if err != nil {
		return Ending{}, err
	}
	// The command is to die with this process, and the kernel goes by the thread that
	// started it: that must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unstoppable()
	s, err := newStarter(j.Helper, path, j.Args)
	if err != nil {
		return Ending{}, err
	}
	defer s.close()
	cmd := s.cmd
	cmd.Env = append(os.Environ(), j.Env...)
	cmd.WaitDelay = lingering // for a Stdin that is no file
	t := terminalOf(j.Stdin)
	defer t.takeBack()
	cmd.Stdin, cmd.SysProcAttr = j.Stdin, attributes(t)
	out, err := j.start(cmd)
	if err != nil {
		return Ending{}, err
	}
	if err := s.become(path, w); err != nil {
		out.end(&Ending{})
		return Ending{}, err
	}
	g := group{Job: j, pid: cmd.Process.Pid, note: out.stderr.note, kill: kill}
	ended, ending := make(chan struct{}), Ending{}
	var watching sync.WaitGroup
	watching.Go(func() { ending.Stopped, ending.Told = g.watch(ctx, signals, w.gone, ended) })
	awaitEnd(cmd)
	close(ended)
	watching.Wait()
	if ending.Stopped {
		_ = kill(-g.pid, syscall.SIGKILL) // what outlived the command
	}
	w.stop()
	_ = cmd.Wait() // its state tells all
	ending.Code, ending.Signalled = exitCode(cmd.ProcessState)
	if ending.Stopped {
		g.awaitGone(ctx)
	}
	out.end(&ending)
	return ending, nil
}

// start starts the command, with pipes of our own: [os/exec.Cmd.Wait] would wait for whoever
// reads what it wrote.
func (j *Job) start(cmd *exec.Cmd) (*output, error) {
	stdout, toStdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer toStdout.Close()
	stderr, toStderr, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdout.Close())
	}
	defer toStderr.Close()
	cmd.Stdout, cmd.Stderr = toStdout, toStderr
	if err := cmd.Start(); err != nil {
		_, _ = stdout.Close(), stderr.Close()
		return nil, err
	}
	return &output{newStream(stdout, j.Stdout), newStream(stderr, j.Stderr)}, nil
}

// NotFound reports whether an error of Run says that there is no such command.
func NotFound(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)
}

func exitCode(state *os.ProcessState) (code int, signalled bool) {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), true
	}
	return state.ExitCode(), false
}
