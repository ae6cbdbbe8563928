//go:build !linux

package pgtest

import (
	"os"
	"os/exec"
	"syscall"
)

// Elsewhere the watch alone ends a server whose tests have died, and tests cannot run as root.

func memory() string { return "" }

func attributes() *syscall.SysProcAttr        { return nil }
func dieWithParent(*exec.Cmd)                 {}
func giveAway(string) error                   { return nil }
func killFamily(postmaster *os.Process)       { _ = postmaster.Kill() }
func forgetSharedMemory(postmasterPid string) {}
