package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// unprivileged is whom PostgreSQL runs as when the tests run as root, which it refuses.
var unprivileged = sync.OnceValue(func() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errU := strconv.ParseUint(u.Uid, 10, 32)
		gid, errG := strconv.ParseUint(u.Gid, 10, 32)
		if errU == nil && errG == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil // initdb says what is wrong
})

// attributes put a child in a session of its own: a ^C meant for the tests must not end it before them.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: unprivileged()}
}

func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }

// memory is a directory whose files are in memory; empty if there is none with room for what many
// tests write at once.
func memory() string {
	const dir, room = "/dev/shm", 4 << 30
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < room || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
}

// giveAway makes a directory that of whom PostgreSQL runs as.
func giveAway(dir string) error {
	if c := unprivileged(); c != nil {
		return os.Chown(dir, int(c.Uid), int(c.Gid))
	}
	return nil
}

// killFamily kills a postmaster and its backends, which are in sessions of their own. The
// postmaster is halted first, so that it neither starts others nor hears of their end.
func killFamily(postmaster *os.Process) {
	_ = postmaster.Signal(syscall.SIGSTOP) // each may have ended by itself
	family := children(postmaster.Pid)
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = postmaster.Kill()
}

func children(parent int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // fails for a bad pattern only
	var pids []int
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// "pid (name) state ppid …": a name may hold anything, ) too.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // digits, by the pattern
			pids = append(pids, pid)
		}
	}
	return pids
}

// forgetSharedMemory removes the segment that a killed server leaves; its id is the last word
// of the seventh line of postmaster.pid, which a server that was stopped removes.
func forgetSharedMemory(data string) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	var key, id int
	if len(lines) < 7 {
		return
	}
	if _, err := fmt.Sscan(lines[6], &key, &id); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}
