package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Stats is what a server under measurement has done so far.
type Stats struct {
	// CPU is the processor time that its process has used.
	CPU time.Duration
	// Operations and Syncs are how many operations its store has written and with how
	// many syncs; zero for a server without a store.
	Operations, Syncs int64
}

func (s Stats) add(other Stats) Stats {
	return Stats{CPU: s.CPU + other.CPU, Operations: s.Operations + other.Operations, Syncs: s.Syncs + other.Syncs}
}

func (s Stats) since(before Stats) Stats {
	return Stats{CPU: s.CPU - before.CPU, Operations: s.Operations - before.Operations, Syncs: s.Syncs - before.Syncs}
}

// Child is a server in a process of its own, as servers are. It ends when its standard
// input does: with this process at the latest.
type Child struct {
	Addr string

	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu  sync.Mutex
	out *json.Decoder
}

// greeting is the first thing that a child says.
type greeting struct{ Addr string }

// StartChild starts a command that calls [ServeChild], and returns when it serves. It has
// this process's standard error.
func StartChild(ctx context.Context, name string, args ...string) (*Child, error) {
	c := &Child{cmd: exec.CommandContext(ctx, name, args...)}
	c.cmd.Stderr = os.Stderr
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(stdout)
	var hello greeting
	if err := c.out.Decode(&hello); err != nil {
		return nil, errors.Join(fmt.Errorf("the server under measurement did not start: %w", err), c.Stop())
	}
	c.Addr = hello.Addr
	return c, nil
}

// Stats asks the child what it has done.
func (c *Child) Stats() (s Stats, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := io.WriteString(c.stdin, "\n"); err != nil {
		return s, err
	}
	err = c.out.Decode(&s)
	return s, err
}

// Stop ends the child, and returns when it is gone.
func (c *Child) Stop() error {
	return errors.Join(c.stdin.Close(), c.cmd.Wait())
}

// ServeChild is the other end of a [Child]: it says where it serves, answers each line with
// what stats returns, and returns when there is nothing more to read.
func ServeChild(stdin io.Reader, stdout io.Writer, addr string, stats func() Stats) error {
	out := json.NewEncoder(stdout)
	if err := out.Encode(greeting{addr}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(stdin); lines.Scan(); {
		if err := out.Encode(stats()); err != nil {
			return err
		}
	}
	return nil
}
