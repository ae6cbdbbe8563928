package job

import (
	"os/exec"
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

// awaitEnd returns when the command has ended. It is a zombie then: nothing else gets its number.
func awaitEnd(cmd *exec.Cmd) {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
