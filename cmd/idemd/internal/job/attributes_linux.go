package job

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes has the kernel kill the command when this process dies, as the watcher does: the
// kernel does so at once, but forgets it when the command becomes another user.
func attributes(t terminal) *syscall.SysProcAttr {
	a := t.attributes()
	a.Pdeathsig = syscall.SIGKILL
	return a
}

// dieWithParent is attributes for a starter, from within: the kernel keeps what attributes says
// with the thread that was started, and another one may become the command.
func dieWithParent() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0) // the watcher does it too
}

// awaitEnd returns when the command has ended. It is a zombie then: nothing else gets its number.
func awaitEnd(cmd *exec.Cmd) {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
