package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/cmd/idemd/internal/job"
	"github.com/idemd/idemd/store"
)

// guardedRun is one run of a command for a key.
type guardedRun struct {
	*runCmd
	s       *session
	idemd   *client.Client
	signals chan os.Signal // for the command

	unknown, noEffect exitCodes // what the flags say of exit codes

	mu     sync.Mutex
	acting bool          // the command runs, or is about to be started
	signal os.Signal     // that came before
	left   chan struct{} // closed when the command has ended

	ending   *job.Ending // nil: the command did not run
	notBegun error       // why it could not be started
	recorded error       // why what came of it could not be recorded; nil if it could, or is not known yet
}

// What a signal asks: to end, or something of the command alone.
var (
	ends = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
	asks = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT}
)

// listen takes the signals of this process: before the command is started they end the
// claim, then they are for the command, and once that has ended they end the waiting. The next
// one ends this process. Those that ask something of the command alone are for nobody if it does not
// run. Those that are ignored, as by nohup, stay so. The command goes on, too, when nobody reads what
// it writes any more.
func (r *guardedRun) listen() (context.Context, func()) {
	r.signals, r.left = make(chan os.Signal), make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.s.ctx))
	incoming, unread, done := make(chan os.Signal, 8), make(chan os.Signal, 1), make(chan struct{})
	for _, sig := range slices.Concat(ends, asks) {
		if !signal.Ignored(sig) {
			signal.Notify(incoming, sig)
		}
	}
	signal.Notify(unread, syscall.SIGPIPE)
	early := context.AfterFunc(r.s.ctx, func() { r.interrupt(syscall.SIGTERM, cancel) })
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case sig := <-incoming:
				if r.take(sig, cancel) {
					signal.Stop(incoming)
				}
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		early()
		signal.Stop(incoming)
		signal.Stop(unread)
		close(done)
		listening.Wait()
		cancel()
	}
}

// take passes a signal on, or has it end this process. It reports whether it did that.
func (r *guardedRun) take(sig os.Signal, cancel func()) (over bool) {
	if slices.Contains(asks, sig) {
		_ = r.acts() && r.pass(sig)
		return false
	}
	return r.interrupt(sig, cancel) || !r.pass(sig) && r.interrupt(sig, cancel)
}

// acts reports whether there is a command for signals.
func (r *guardedRun) acts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acting
}

// pass gives a signal to the command. It reports false if that has ended.
func (r *guardedRun) pass(sig os.Signal) bool {
	select {
	case r.signals <- sig:
		return true
	case <-r.left:
		return false
	}
}

// interrupt ends the claim, or the waiting after the command, unless that runs.
func (r *guardedRun) interrupt(sig os.Signal, cancel func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.acting {
		return false
	}
	if r.signal == nil {
		r.signal = sig
	}
	cancel()
	return true
}

// begin reports whether the command may be started: not if a signal came before.
func (r *guardedRun) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acting = r.signal == nil
	return r.acting
}

// leave is called when the command has ended: a signal is no longer for it.
func (r *guardedRun) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acting = false
	close(r.left)
}

// Errors of [guardedRun.act], which say nothing of the key.
var (
	errNotBegun = errors.New("the command was not started")
	errEnded    = errors.New("the command ended, and what it did is unknown")
)

// act runs the command under the right to act.
func (r *guardedRun) act(ctx context.Context, a *client.Attempt) (ran, error) {
	if !r.begin() {
		return ran{}, client.NoEffect(errNotBegun)
	}
	defer r.leave()
	if a.Unsettled {
		fmt.Fprintln(r.s.stderr, "idemd: an earlier run of this key may have acted, and nobody knows; the command is told so by IDEMD_RUN_UNSETTLED=1")
	}
	killAfter, err := r.killAfter(leaseOf(a))
	if err != nil {
		r.notBegun = err
		return ran{}, client.NoEffect(errNotBegun)
	}
	j := job.Job{
		Args: r.Command, Env: environment(a), Stdin: r.s.stdin, Stdout: r.s.stdout, Stderr: r.s.stderr,
		Until: a.Deadline, KillAfter: killAfter, Helper: r.s.exe,
	}
	context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), client.ErrLeaseLost) {
			fmt.Fprintf(r.s.stderr, "idemd: %s; another run may begin, and the command is ended\n", oneLine(withReason(context.Cause(ctx)).Error()))
		}
	})
	ending, err := j.Run(ctx, r.signals)
	if err != nil {
		r.notBegun = err
		return ran{}, client.NoEffect(errNotBegun)
	}
	r.ending = &ending
	return r.meaning(a)
}

// leaseOf is how long the lease is that was granted just now. Of that, the attempt counts on a
// second or a tenth less.
func leaseOf(a *client.Attempt) time.Duration {
	left := time.Until(a.Deadline())
	return (left + min(left/9, time.Second)).Round(time.Second / 2)
}

// meaning says what the end of the command means for the key. A code with which it has exited by itself is
// its answer, and is recorded. While it is in doubt whether an earlier run acted, no failure is: an "already
// done" may be about that one. Nor is one that follows a signal by which it was asked to end: it may be halfway.
func (r *guardedRun) meaning(a *client.Attempt) (ran, error) {
	switch code := r.ending.Code; {
	case r.ending.Stopped:
		return ran{}, errEnded
	case r.ending.Signalled:
		return ran{}, errEnded
	case r.noEffect[code]:
		return ran{}, client.NoEffect(errEnded)
	case r.unknown[code], code != 0 && (a.Unsettled || r.ending.Told):
		return ran{}, errEnded
	default:
		return ran{ExitCode: code, Stdout: r.ending.Stdout, Stderr: r.ending.Stderr}, nil
	}
}

// environment is what the command is told. The names are not those of flags, which would
// change what an idemd does that the command calls.
func environment(a *client.Attempt) []string {
	unsettled := 0
	if a.Unsettled {
		unsettled = 1
	}
	return []string{
		"IDEMD_RUN_KEY=" + a.Key.ID,
		fmt.Sprintf("IDEMD_RUN_FENCE=%d", a.Fence),
		fmt.Sprintf("IDEMD_RUN_ATTEMPT=%d", a.Number),
		fmt.Sprintf("IDEMD_RUN_UNSETTLED=%d", unsettled),
		"IDEMD_RUN_DOWNSTREAM_KEY=" + a.DownstreamKey("run"),
	}
}

// event notes how recording goes.
func (r *guardedRun) event(e client.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Kind {
	case client.EventNotRecorded, client.EventRecordingFailed:
		r.recorded = e.Err
	case client.EventRecorded, client.EventReleased, client.EventUnknown:
		r.recorded = nil
	}
}

// giveBackFor is how long a run that was not answered tries to give back what it may have been
// granted.
const giveBackFor = 2 * time.Second

// do claims the key, runs the command if it is granted, and returns how to exit.
func (r *guardedRun) do(ctx context.Context) error {
	result, err := r.claim(ctx)
	switch {
	case r.ending != nil:
		defer r.passedOn(ctx)
		return r.ended(ctx, err)
	case exitCode(r.notBegun) == exitUsage:
		return r.notBegun
	case r.notBegun != nil && job.NotFound(r.notBegun):
		return exitError{fmt.Errorf("%w; nothing happened, and the key is free", r.notBegun), exitNotFound}
	case r.notBegun != nil:
		return exitError{fmt.Errorf("%w; nothing happened, and the key is free", r.notBegun), exitNotRunnable}
	case err == nil && result.Replayed:
		return r.replay(result.Value, result.Age)
	case errors.Is(err, store.ErrOutcomeOmitted), storedFailure(err):
		return r.replayOther(ctx, err)
	}
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackFor)
	defer cancel()
	_ = client.Drain(giving) // else it lapses
	if sig, ok := r.signal.(syscall.Signal); ok {
		return exitError{fmt.Errorf("%v before the command was started", sig), 128 + int(sig)}
	}
	return r.refused(err)
}

// ended is a run whose command has ended: what came of it is told, and the exit code is its own
// unless another run may be acting.
func (r *guardedRun) ended(ctx context.Context, err error) error {
	code := r.ending.Code
	switch {
	case r.ending.Stopped:
		return exitError{errors.New("the right to act was over, or nearly, before the command was: what it did is unknown, and the next run of this key is told so"), exitLeaseLost}
	case err != nil && !errors.Is(err, errEnded):
		return exitError{fmt.Errorf("the command ended with exit code %d, but another run or an operator had come in between, and this is not recorded: %w", code, withReason(err)), exitLeaseLost}
	}
	if failed := r.recordedAtLast(ctx); failed != nil {
		fmt.Fprintf(r.s.stderr, "idemd: the command ended with exit code %d, which is not recorded (%s): the next run of this key is told to check\n", code, oneLine(failed.Error()))
	} else if err != nil && (r.ending.Signalled || !r.noEffect[code]) {
		next := "the next run of this key is told so, unless the namespace holds it"
		if r.OnLapse == "hold" {
			next = "no run of this key begins before a person has settled it"
		}
		fmt.Fprintf(r.s.stderr, "idemd: the command ended with exit code %d: what it did is unknown, and %s\n", code, next)
	}
	return exitError{errShown, code}
}

// recordedAtLast waits while what came of the command is still being recorded, or until a signal.
func (r *guardedRun) recordedAtLast(ctx context.Context) error {
	failed := func() error { r.mu.Lock(); defer r.mu.Unlock(); return r.recorded }
	if err := failed(); err != nil {
		fmt.Fprintf(r.s.stderr, "idemd: the command ended with exit code %d, which could not be recorded yet (%s); trying on\n", r.ending.Code, oneLine(err.Error()))
	}
	_ = client.Drain(ctx)
	return failed()
}

// passedOn waits until whoever reads what the command wrote has taken it, or until a signal.
func (r *guardedRun) passedOn(ctx context.Context) {
	select {
	case <-r.ending.Passed:
	case <-ctx.Done():
	}
}
