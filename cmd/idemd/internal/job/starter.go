package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// starterCommand is the first argument of a starter.
const starterCommand = "run-starter"

// A starter is a process that becomes the command once it is told to, so that the watcher knows
// the command's group before the command does anything. If this process dies before that, the
// starter ends.
//
// The group would be known as early if the watcher led it, without a starter. But much that does
// not lead its group leaves it, and is out of reach then: timeout, shells that are interactive.
type starter struct {
	cmd    *exec.Cmd
	ours   *os.File
	theirs *os.File
}

// newStarter returns one that is not started yet. Only what is started next gets its end of the
// socket, under the number that it has here: the command may have been given others to use.
func newStarter(program, path string, args []string) (*starter, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("the command's starter: %w", err)
	}
	unix.CloseOnExec(fds[0])
	cmd := exec.Command(program, append([]string{starterCommand, strconv.Itoa(fds[1]), path}, args...)...)
	return &starter{cmd: cmd, ours: os.NewFile(uintptr(fds[0]), "starter"), theirs: os.NewFile(uintptr(fds[1]), "starter")}, nil
}

// close ends a starter that has not become the command.
func (s *starter) close() {
	_ = s.ours.Close()
	_ = s.theirs.Close()
}

// become has a starter that runs become the command, which the watcher knows then. An error says
// that it has not, and is gone.
func (s *starter) become(path string, w *watcher) error {
	w.watch(s.cmd.Process.Pid)
	_ = s.theirs.Close() // the starter's is the only one: it ends when the command begins
	_, err := s.ours.Write([]byte{0})
	said, readErr := io.ReadAll(s.ours)
	switch code, notSaid := strconv.Atoi(string(said)); {
	case notSaid != nil:
		err = errors.Join(err, readErr, s.cmd.Wait())
		return fmt.Errorf("the command's starter ended: %v", err) //nolint:errorlint // it is not the command that is not found
	case code != 0:
		_ = s.cmd.Wait()
		return &os.PathError{Op: "exec", Path: path, Err: syscall.Errno(code)}
	}
	return nil
}

// startCommand is what a starter does.
func startCommand(args []string) {
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return
	}
	syscall.CloseOnExec(fd)
	dieWithParent()
	parent := os.NewFile(uintptr(fd), "parent")
	if n, _ := parent.Read(make([]byte, 1)); n == 0 {
		return
	}
	_, _ = parent.WriteString("0")
	var code syscall.Errno
	if errors.As(syscall.Exec(args[1], args[2:], os.Environ()), &code) {
		_, _ = parent.WriteString(strconv.Itoa(int(code)))
	}
}
