//go:build !linux

package job

import (
	"os/exec"
	"syscall"
)

// attributes leaves it to the watcher to end the command when this process dies.
func attributes(t terminal) *syscall.SysProcAttr { return t.attributes() }

// dieWithParent leaves it to the watcher too.
func dieWithParent() {}

// awaitEnd returns when the command has ended.
func awaitEnd(cmd *exec.Cmd) { _ = cmd.Wait() }
