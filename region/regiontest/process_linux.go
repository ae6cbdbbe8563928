package regiontest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the process end with the test that started it, however that ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
