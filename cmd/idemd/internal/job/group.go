package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// A group is the command and what it started.
type group struct {
	*Job
	pid  int
	note func(text string)
	kill func(pid int, sig syscall.Signal) error
}

// watch passes signals on, and ends the group when it may not act any more, until the command
// has ended. Told says that a signal which asks to end was passed on.
func (g *group) watch(ctx context.Context, signals <-chan os.Signal, gone, ended <-chan struct{}) (stopped, told bool) {
	over := ctx.Done()
	ask := time.NewTimer(g.beforeAsking())
	defer ask.Stop()
	var kill <-chan time.Time
	for {
		select {
		case <-ended:
			return stopped, told
		case sig := <-signals:
			if sig, ok := sig.(syscall.Signal); ok {
				told = told || slices.Contains(enders, sig)
				g.send(sig)
			}
			continue
		case <-gone:
			gone = nil
			g.note("idemd: the command's watcher has ended: if this process is killed the command may act on\n")
			continue
		case <-kill:
			kill = nil
			g.end(ctx)
			continue
		case <-over:
			over = nil
		case <-ask.C:
			if left := g.beforeAsking(); left > 0 {
				ask.Reset(left)
				continue
			}
			if !stopped {
				g.note(fmt.Sprintf("idemd: the lease was not renewed in time: the command is asked to end, and another run may begin at %s\n", g.until().Format(time.RFC3339)))
			}
		}
		if !stopped {
			stopped = true
			g.send(syscall.SIGTERM)
			kill = time.After(min(g.KillAfter, time.Until(g.until())))
		}
	}
}

// enders are the signals that ask a command to end.
var enders = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

// beforeAsking is how long it is until the command is asked to end, so that it has ended when
// another run may begin.
func (g *group) beforeAsking() time.Duration { return time.Until(g.until().Add(-g.KillAfter)) }

func (g *group) until() time.Time {
	if g.Until == nil {
		return time.Now().Add(time.Hour)
	}
	return g.Until()
}

// send sends a signal. It may be too late; that does no harm.
func (g *group) send(sig syscall.Signal) {
	if err := g.kill(-g.pid, sig); errors.Is(err, syscall.EPERM) {
		g.note(fmt.Sprintf("idemd: the command did not get the signal %q, as it has become another user\n", sig))
	}
}

// end ends all at once.
func (g *group) end(ctx context.Context) {
	if err := g.kill(-g.pid, syscall.SIGKILL); errors.Is(err, syscall.EPERM) {
		g.actsOn(ctx)
	}
}

func (g *group) actsOn(ctx context.Context) {
	when := "now"
	if until := g.until(); ctx.Err() == nil && time.Until(until) > 0 {
		when = "at " + until.Format(time.RFC3339)
	}
	g.note(fmt.Sprintf("idemd: THE COMMAND COULD NOT BE ENDED, as it has become another user: process group %d still acts, and another run may begin %s\n", g.pid, when))
}

// awaitGone waits until nothing is left of a group that was killed and whose command is gone, for a
// second at most: what is dead and was not reaped yet counts as left. What could not be killed is told.
func (g *group) awaitGone(ctx context.Context) {
	for range 100 {
		switch err := g.kill(-g.pid, 0); {
		case errors.Is(err, syscall.EPERM):
			g.actsOn(ctx)
			return
		case err != nil:
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
