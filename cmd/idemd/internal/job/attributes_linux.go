package job

import "syscall"

// attributes has the kernel kill the command when this process dies, however it does.
func attributes(alone bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: alone, Pdeathsig: syscall.SIGKILL}
}
