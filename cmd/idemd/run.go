package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/cmd/idemd/internal/job"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// The exit codes of run, beside the command's own. As with env, timeout and docker run, they
// are at the end of what a command may use, and 125 to 127 mean the same as there. They are
// documented in README.md, beside this file.
const (
	exitInProgress  = 121 // another run holds the key
	exitUnresolved  = 122 // the key is held for a person
	exitUnknown     = 123 // idemd did not answer
	exitLeaseLost   = 124 // the right to act was over before the command was
	exitRunFailed   = 125 // refused, or the command line is wrong
	exitNotRunnable = 126 // the command could not be started
	exitNotFound    = 127 // there is no such command
)

// runCmd runs a command once for a key.
type runCmd struct {
	Key        string  `required:"" env:"-" placeholder:"ID" help:"Id of the key: one for the slot, such as nightly@2026-10-28T02:00Z, never the moment of the start."`
	Namespace  string  `default:"default" help:"Namespace of the key (${default})."`
	Scope      string  `help:"Scope of the key: the operation."`
	Entity     string  `help:"Entity of the key: who owns the intent."`
	IntentTime instant `placeholder:"RFC3339" help:"When the slot was: a repeat that comes after retention is then refused, and not taken for new."`

	Wait          span     `help:"How long to wait while another run holds the key, or idemd does not answer (not at all)."`
	Lease         span     `help:"How long the right to act lasts without a renewal, 1s to 15m (the namespace's, 30s by default): so long others wait after a crash, and so long an outage of idemd may last while the command runs."`
	OnLapse       string   `enum:"takeover,hold" default:"takeover" help:"If nobody knows what a run did, as it was killed or by --unknown-codes: takeover, the next one, also one that waits, is told to check and runs (unless the namespace holds); or hold, nobody runs before a person has settled it."`
	UnknownCodes  []string `placeholder:"N" help:"Exit codes after which nobody knows what the command did, 1 to 255; or any, all of these. (None: whatever the command exits with is recorded, and a repeat exits with the same.)"`
	NoEffectCodes []string `placeholder:"N" help:"Exit codes that say that nothing happened, such as 75: the key is free again."`
	KillAfter     span     `help:"How long the command has to end before the right to act is over, if the lease is not renewed, up to a third of the lease (a sixth, and not more than 5s)."`

	Addr          string `default:"127.0.0.1:7600" placeholder:"HOST:PORT" help:"Where the server listens (${default})."`
	CA            string `name:"ca" placeholder:"FILE" help:"Use TLS: the authorities of the server's certificate, in PEM."`
	Cert          string `placeholder:"FILE" help:"With --ca: your certificate, in PEM."`
	CertKey       string `env:"IDEMD_KEY" placeholder:"FILE" help:"The key of --cert."`
	TokenFile     string `placeholder:"FILE" help:"Your bearer token, alone in a file."`
	AllowInsecure bool   `help:"Send plain text to another machine."`

	Command []string `arg:"" passthrough:"" help:"The command and its arguments, after --."`
}

// remote are the flags of other commands by which the server is reached. Their --key is a file.
func (c *runCmd) remote() *remoteFlags {
	return &remoteFlags{
		Addr: c.Addr, AllowInsecure: c.AllowInsecure,
		credentialFlags: credentialFlags{CA: c.CA, Cert: c.Cert, Key: c.CertKey, TokenFile: c.TokenFile},
	}
}

func (c *runCmd) key() store.Key {
	return store.Key{Namespace: c.Namespace, Scope: c.Scope, ID: c.Key, Entity: c.Entity}
}

// Run is called by kong. Whatever fails before the command runs has a code that commands
// seldom have.
func (c *runCmd) Run(s *session) error {
	err := c.run(s)
	if err == nil || errors.Is(err, errShown) || exitCode(err) >= exitInProgress {
		return err
	}
	return exitError{err, exitRunFailed}
}

func (c *runCmd) run(s *session) error {
	switch first := append(c.Command, "")[0]; {
	case first == "--":
		c.Command = c.Command[1:]
	case strings.HasPrefix(first, "-"): // or it would be the command, and use the slot up
		return usageError("%s is no flag of run; a command whose name begins with - is given after --", first)
	}
	unknown, noEffect, err := c.codes()
	if err != nil {
		return err
	}
	if len(c.Command) == 0 || c.Command[0] == "" {
		return usageError("name the command to run, after --")
	}
	if c.Lease > 0 {
		if _, err := c.killAfter(time.Duration(c.Lease)); err != nil {
			return err
		}
	}
	idemd, err := c.remote().dialClient()
	if err != nil {
		return err
	}
	defer idemd.Close()
	r := &guardedRun{runCmd: c, s: s, idemd: idemd, unknown: unknown, noEffect: noEffect}
	ctx, done := r.listen()
	defer done()
	return r.do(ctx)
}

// codes are the exit codes that the flags name.
func (c *runCmd) codes() (unknown, noEffect exitCodes, err error) {
	if unknown, err = parseExitCodes(c.UnknownCodes, true); err != nil {
		return nil, nil, usageError("--unknown-codes: %w", err)
	}
	if noEffect, err = parseExitCodes(c.NoEffectCodes, false); err != nil {
		return nil, nil, usageError("--no-effect-codes: %w", err)
	}
	for code := range noEffect {
		if unknown[code] && !slices.Equal(c.UnknownCodes, anyCode) {
			return nil, nil, usageError("exit code %d is in both --unknown-codes and --no-effect-codes: leave it out of one", code)
		}
	}
	return unknown, noEffect, nil
}

// exitCodes are codes of commands that fail.
type exitCodes map[int]bool

// anyCode stands for all of them.
var anyCode = []string{"any"}

// parseExitCodes reads numbers or, if that is allowed, any.
func parseExitCodes(texts []string, allowAny bool) (exitCodes, error) {
	codes, allowed := exitCodes{}, "give numbers from 1 to 255, such as 2,75"
	if allowAny {
		allowed += ", or any alone"
	}
	if allowAny && slices.Equal(texts, anyCode) {
		for code := 1; code <= math.MaxUint8; code++ {
			codes[code] = true
		}
		return codes, nil
	}
	if texts != nil && len(texts) == 0 {
		return nil, errors.New("it is empty: " + allowed)
	}
	for _, text := range texts {
		code, err := strconv.ParseUint(text, 10, 8)
		if err != nil || code == 0 {
			return nil, fmt.Errorf("%q is no exit code of a command that failed: %s", text, allowed)
		}
		codes[int(code)] = true
	}
	return codes, nil
}

// killAfter is how long the command has to end of a lease. The first renewal is sent after a
// third of it, and what is left between is for those that fail.
func (c *runCmd) killAfter(lease time.Duration) (time.Duration, error) {
	if c.KillAfter == 0 {
		return min(lease/6, 5*time.Second), nil
	}
	if most := lease / 3; time.Duration(c.KillAfter) > most {
		return 0, usageError("--kill-after %v is more than a third of the lease of %v: at most %v, or a longer --lease", c.KillAfter, span(lease), span(most))
	}
	return time.Duration(c.KillAfter), nil
}

// claim asks, for as long as --wait says, and runs the command if it is granted.
func (r *guardedRun) claim(ctx context.Context) (client.Result[ran], error) {
	over := time.Now().Add(time.Duration(r.Wait))
	for {
		left := max(time.Until(over), 0)
		result, err := client.Do(ctx, r.idemd, r.key(), nil, r.act, r.options(min(left, store.MaxWait))...)
		if r.ending != nil || ctx.Err() != nil || !mayPass(err) || time.Until(over) <= 0 {
			return result, err
		}
		select {
		case <-time.After(max(min(retryHint(err), time.Until(over)), 0)):
		case <-ctx.Done():
		}
	}
}

func (r *guardedRun) options(wait time.Duration) []client.DoOption {
	opts := []client.DoOption{client.OnEvent(r.event), client.Wait(wait), client.Lease(time.Duration(r.Lease)), client.IntentTime(r.IntentTime.Time)}
	if r.OnLapse == "hold" {
		opts = append(opts, client.Hold())
	}
	return opts
}

// mayPass reports whether a claim that ended with err may be answered otherwise later.
func mayPass(err error) bool {
	return errors.Is(err, store.ErrKeyInProgress) || unanswered(err)
}

// unanswered reports whether idemd did not say how the key stands.
func unanswered(err error) bool {
	for _, one := range []error{
		store.ErrUnavailable, store.ErrHomeUnreachable, store.ErrInternal, store.ErrOverloaded, store.ErrQuota,
		store.ErrNamespaceMoving, store.ErrWrongRegion, context.DeadlineExceeded,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// retryHint is how long to wait before asking again.
func retryHint(err error) time.Duration {
	var refused *store.Error
	errors.As(err, &refused)
	if refused == nil {
		return time.Second
	}
	return min(cmp.Or(refused.RetryAfter, time.Second), 5*time.Second)
}

// refused is what a run is told that did not run the command.
func (r *guardedRun) refused(err error) error {
	switch {
	case errors.Is(err, store.ErrKeyInProgress):
		return exitError{errors.New("in progress: another run holds the key; the command was not run (--wait waits for it)"), exitInProgress}
	case errors.Is(err, store.ErrKeyUnresolved):
		key := keyFlags{Namespace: r.Namespace, Scope: r.Scope, ID: r.Key, Entity: r.Entity}
		look := r.s.command(slices.Concat([]string{"record", "inspect"}, r.remote().reach(), key.args())...)
		return exitError{fmt.Errorf("unresolved: nobody knows what an earlier run did, and the key is held; the command was not run. Look: %s; then settle it with record resolve", look), exitUnresolved}
	case unanswered(err):
		return exitError{fmt.Errorf("no answer from %s: %w; the command was not run", r.Addr, withReason(err)), exitUnknown}
	}
	return fmt.Errorf("%w; the command was not run", withReason(err))
}

// withReason is a refusal with its reason in front, as other commands show it.
func withReason(err error) error {
	var refused *store.Error
	if !errors.As(err, &refused) {
		return err
	}
	reason, _ := storepb.ReasonIn(storepb.ToStatus(err))
	return fmt.Errorf("%s: %w", reason, err)
}

// replay is a repeat: it writes what the run wrote that was recorded, and exits as it did.
func (r *guardedRun) replay(of ran, age time.Duration) error {
	again := ""
	if of.ExitCode != 0 {
		again = " (to run it all the same give it another --key)"
	}
	fmt.Fprintf(r.s.stderr, "idemd: replay, age %v: it ended with exit code %d, and is not run again%s%s\n", span(age.Round(time.Second)), of.ExitCode, again, of.cut())
	if _, err := r.s.stdout.Write(of.Stdout.Kept); err != nil {
		return exitError{unwritten(err), exitRunFailed}
	}
	_, _ = r.s.stderr.Write(of.Stderr.Kept) // there is nobody left to tell
	return exitError{errShown, of.ExitCode}
}

// replayOther is a repeat of what was not recorded by a run, but by an operator for example. It
// fails if what is recorded says so.
func (r *guardedRun) replayOther(ctx context.Context, recorded error) error {
	found, err := r.idemd.Lookup(ctx, store.LookupRequest{Key: r.key()})
	if err != nil {
		return err
	}
	if o := found.Outcome; o != nil && o.BodyOmitted && o.BodyType != "" {
		return errors.New("it was run, but its output was too large for the namespace, and its exit code is not stored either; the command was not run again (let an operator raise --max-outcome-bytes)")
	}
	how := ""
	if found.Outcome != nil {
		how = fmt.Sprintf(" (outcome %s)", statusText(found.Outcome.Status))
	}
	fmt.Fprintf(r.s.stderr, "idemd: replay: it is recorded as done%s, though not with what it wrote, and is not run again\n", how)
	if found.Outcome != nil {
		if _, err := r.s.stdout.Write(found.Outcome.Body); err != nil {
			return exitError{unwritten(err), exitRunFailed}
		}
	}
	if storedFailure(recorded) {
		return exitError{errShown, exitFailed}
	}
	return nil
}

// ran is what is recorded of a run, as JSON.
type ran struct {
	ExitCode int        `json:"exit_code"`
	Stdout   job.Output `json:"stdout"`
	Stderr   job.Output `json:"stderr"`
}

// cut says what of the output is not kept.
func (r *ran) cut() string {
	lost := r.Stdout.Bytes - int64(len(r.Stdout.Kept)) + r.Stderr.Bytes - int64(len(r.Stderr.Kept))
	if lost == 0 {
		return ""
	}
	return fmt.Sprintf(" (of its output the first %d bytes are not kept)", lost)
}

// storedFailure reports whether an error is an outcome that says that it failed, which
// an operator recorded.
func storedFailure(err error) bool {
	var refused *store.Error
	_, isStatus := status.FromError(err)
	return isStatus && !errors.As(err, &refused)
}
