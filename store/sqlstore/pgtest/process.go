package pgtest

import (
	"io"
	"os/exec"
	"runtime"
)

// command runs in dir, with an environment of its own and as the user PostgreSQL runs as.
func command(dir, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = attributes()
	return cmd
}

// process is a child that dies with this process.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// startProcess starts a child on a thread that lives as long as the child does: the death signal
// is sent when the thread ends, and Go may end any thread that a test has locked.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	dieWithParent(cmd)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		close(p.ended)
	}()
	return p, <-started
}

// watch is a process that outlives this one: it waits for the end of its standard input, which comes when this
// process ends in whatever way, then stops the server if it still runs and removes its directory.
type watch struct {
	cmd   *exec.Cmd
	input io.Closer
}

// A backend that has not yet seen the end may write one more file: hence the repeats.
const watchScript = `
cat >/dev/null
"$1/pg_ctl" stop -s -m immediate -D "$2/data" >/dev/null 2>&1
for i in 1 2 3 4 5 6 7 8 9; do
	rm -rf "$2" && exit
	sleep 0.2
done`

func startWatch(bin, dir string) (*watch, error) {
	cmd := command("/", "/bin/sh", "-c", watchScript, "pgtest-watch", bin, dir)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &watch{cmd: cmd, input: input}, cmd.Start()
}

func (w *watch) end() {
	_ = w.input.Close()
	_ = w.cmd.Wait() // its exit says nothing: the directory is gone or it is not
}
