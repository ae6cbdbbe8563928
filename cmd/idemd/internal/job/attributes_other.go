//go:build !linux

package job

import "syscall"

// attributes cannot have the command die with this process, if that is killed: only Linux
// can.
func attributes(alone bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: alone} }
