package job

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal is the one that this process reads from, if it is in the foreground there.
type terminal struct {
	fd   int
	here bool
}

func terminalOf(stdin io.Reader) terminal {
	f, ok := stdin.(*os.File)
	if !ok {
		return terminal{}
	}
	fd := int(f.Fd())
	foreground, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return terminal{fd: fd, here: err == nil && foreground == unix.Getpgrp()}
}

// attributes give the command a process group of its own, which all that it starts is in and
// which signals are sent to, and that the terminal: it can read from it, and what is typed
// there, such as Ctrl-C, reaches it without our help.
func (t terminal) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: t.here, Ctty: t.fd}
}

// takeBack ends what attributes began.
func (t terminal) takeBack() {
	if t.here {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// unstoppable keeps a terminal from stopping this process, and the command, which inherits it.
// If this process were stopped, by Ctrl-Z, the lease would end while the command acts; a
// command that was stopped, as it read from a terminal in the background, would stand still for
// ever. It gets an error instead.
func unstoppable() { signal.Ignore(syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU) }
