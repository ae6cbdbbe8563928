package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lines is what was written so far.
type lines struct {
	sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(p)
}

func (l *lines) String() string {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.String()
}

// TestRunIsStoppedInTime checks that a command is killed when another may begin.
func TestRunIsStoppedInTime(t *testing.T) {
	t.Parallel()
	var said lines
	var killed time.Time
	kill := func(pid int, sig syscall.Signal) error {
		if sig == syscall.SIGKILL && killed.IsZero() {
			killed = time.Now()
		}
		return syscall.Kill(pid, sig)
	}
	until := time.Now().Add(3 * time.Second)
	j := Job{
		Args: []string{"sh", "-c", "trap 'echo asked' TERM; while :; do sleep 0.05; done"}, Stderr: &said, Stdout: &said, Helper: os.Args[0],
		Until: func() time.Time { return until }, KillAfter: 2 * time.Second,
	}
	w, err := startWatcher(j.Helper)
	if err != nil {
		t.Fatal(err)
	}
	defer w.stop()
	ending, err := j.run(context.Background(), nil, w, kill)
	<-ending.Passed
	if err != nil || ending.Code != 137 || !ending.Stopped || string(ending.Stdout.Kept) != "asked\n" || !strings.Contains(said.String(), "another run may begin at 2") {
		t.Errorf("%+v, %v: %s", ending, err, &said)
	}
	if late := killed.Sub(until); late < 0 || late >= j.KillAfter/2 { // of two seconds' grace, one is for a machine that is slow
		t.Errorf("killed %v late", late)
	}
}

// TestRunMovesOn checks that a command is not asked to end while its lease is renewed.
func TestRunMovesOn(t *testing.T) {
	t.Parallel()
	j := Job{
		Args: []string{"sleep", "1"}, Stderr: failing{}, Stdout: failing{},
		Until: func() time.Time { return time.Now().Add(200 * time.Millisecond) }, KillAfter: 100 * time.Millisecond,
	}
	if ending, err := j.test(context.Background()); err != nil || ending.Code != 0 || ending.Stopped {
		t.Errorf("%+v, %v", ending, err)
	}
}

// TestRunOfAnotherUser checks that it is said loudly if a command cannot be ended: sudo's, which
// takes no signals from whoever called it, or one that it has started.
func TestRunOfAnotherUser(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script  string
		refuses func(sig syscall.Signal) bool
		over    bool
		says    []string
	}{
		"the command":       {"read x <%s", func(syscall.Signal) bool { return true }, false, []string{`did not get the signal "terminated"`, "COULD NOT BE ENDED", "another run may begin at 2"}},
		"the lease is lost": {"read x <%s", func(syscall.Signal) bool { return true }, true, []string{"COULD NOT BE ENDED", "another run may begin now"}},
		"what it started":   {"trap '' TERM; read x <%s", func(sig syscall.Signal) bool { return sig == 0 }, false, []string{"COULD NOT BE ENDED"}},
	} {
		fifo := t.TempDir() + "/fifo"
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		goOn := make(chan struct{}, 9)
		kill := func(pid int, sig syscall.Signal) error {
			if sig == syscall.SIGKILL {
				goOn <- struct{}{}
			}
			if test.refuses(sig) {
				return syscall.EPERM
			}
			return syscall.Kill(pid, sig)
		}
		go func() { // it ends when it likes to
			<-goOn
			if f, err := os.OpenFile(fifo, os.O_RDWR, 0); err == nil {
				_, _ = f.WriteString("\n")
				<-goOn // what outlived the command is killed
				_ = f.Close()
			}
		}()
		var said lines
		until := time.Now().Add(2 * time.Second)
		j := Job{
			Args: []string{"sh", "-c", fmt.Sprintf(test.script, fifo)}, Stdout: failing{}, Stderr: &said, Helper: os.Args[0],
			Until: func() time.Time { return until }, KillAfter: time.Second,
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		if test.over {
			cancel(errors.New("it is lost"))
		}
		w, err := startWatcher(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		ending, err := j.run(ctx, nil, w, kill)
		cancel(nil)
		<-ending.Passed
		if err != nil || !ending.Stopped {
			t.Errorf("%s: %+v, %v", name, ending, err)
		}
		for _, part := range test.says {
			if !strings.Contains(said.String(), part) {
				t.Errorf("%s: does not say %q: %s", name, part, &said)
			}
		}
	}
}

// TestRunWithoutAWatcher checks that no command runs that nothing would end.
func TestRunWithoutAWatcher(t *testing.T) {
	t.Parallel()
	j := Job{Args: []string{"true"}, Stdout: failing{}, Stderr: failing{}, Helper: "./no-such-program"}
	if _, err := j.Run(context.Background(), nil); err == nil || NotFound(err) || !strings.Contains(err.Error(), "watcher") {
		t.Error(err)
	}
}

// TestRunTellsOfItsWatcher checks that it is said if the watcher ends before the command.
func TestRunTellsOfItsWatcher(t *testing.T) {
	t.Parallel()
	var said lines
	ctx, cancel := context.WithCancel(context.Background())
	helper := t.TempDir() + "/helper"
	if err := os.WriteFile(helper, []byte("#!/bin/sh\n[ $1 = "+watcherCommand+" ] || exec "+os.Args[0]+` "$@"`), 0o700); err != nil {
		t.Fatal(err)
	}
	j := Job{Args: []string{"sleep", "1000"}, Stdout: failing{}, Stderr: tell{&said, cancel}, Helper: helper, KillAfter: time.Second}
	ending, err := j.Run(ctx, nil)
	<-ending.Passed
	if err != nil || !ending.Stopped || !strings.Contains(said.String(), "the command's watcher has ended") {
		t.Errorf("%+v, %v: %s", ending, err, &said)
	}
}

// tell calls a function when something is written.
type tell struct {
	*lines
	call func()
}

func (w tell) Write(p []byte) (int, error) {
	defer w.call()
	return w.lines.Write(p)
}
