package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/idemd/idemd/cmd/idemd/internal/demo"
)

// The exit codes. They are documented in README.md, beside this file.
const (
	exitOK         = 0
	exitFailed     = 1 // refused with a reason, or the server could not start or go on
	exitUsage      = 2 // the command line is wrong; nothing was sent
	exitNoAnswer   = 3 // no answer, or none that could be shown: it may have been done, unless it is said that nothing was
	exitNotGranted = 4 // claim --granted: answered, and not granted
	exitPending    = 4 // migrate status: migrate up has something to do
	exitUnsettled  = 5 // claim --granted: granted, but an earlier attempt may have acted
)

// program is the command as a whole. Tests run it in process.
type program struct {
	// name is how the user calls the program; the commands it prints begin with it.
	name string
	// exe is the file with the program, for processes that it starts.
	exe string
	// tune, if not nil, makes this process a good server.
	tune func()
	// exit ends the process when the store can no longer promise anything.
	exit func(code int)
}

// session is one run of a subcommand.
type session struct {
	*program
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// cli is the command line.
type cli struct {
	Help        helpFlag    `short:"h" help:"Show this help and exit."`
	ShowVersion versionFlag `name:"version" env:"-" help:"Show the version and exit."`

	Serve     serveCmd     `cmd:"" help:"Run the server, on an embedded store or on a database."`
	Claim     claimCmd     `cmd:"" help:"Ask for the right to act on a key."`
	Complete  completeCmd  `cmd:"" help:"Store the outcome of an attempt."`
	Renew     renewCmd     `cmd:"" help:"Extend the lease of an attempt."`
	Release   releaseCmd   `cmd:"" help:"Give a key up without an outcome."`
	Run       runCmd       `cmd:"" help:"Run a command once for a key: a job of cron's, say."`
	Lookup    lookupCmd    `cmd:"" help:"Show where a key stands, and change nothing."`
	Key       keyCmd       `cmd:"" help:"Derive the key of a step, an event or a slot, as programs do. No server is asked."`
	Namespace namespaceCmd `cmd:"" help:"Create, show and change namespaces."`
	Record    recordCmd    `cmd:"" help:"Inspect and settle keys, as an operator."`
	Reconcile reconcileCmd `cmd:"" help:"Compare what happened, by a source of truth, with what is recorded."`
	Backup    backupCmd    `cmd:"" help:"Copy an embedded store, while it serves, so that it can be restored."`
	Recovery  recoveryCmd  `cmd:"" help:"After a restore or a failover: what may have been forgotten is refused until somebody settles it."`
	Region    regionCmd    `cmd:"" help:"Show the regions, and move namespaces between them."`
	Bucket    bucketCmd    `cmd:"" help:"Show the time slices of the key store."`
	Migrate   migrateCmd   `cmd:"" help:"Prepare a database for serve --store."`
	DevCerts  devCertsCmd  `cmd:"" help:"Make throw-away certificates and a policy, to try serve with."`
	Token     tokenCmd     `cmd:"" help:"Make bearer tokens for callers."`
	Bench     benchCmd     `cmd:"" help:"Measure idemd against a bare gRPC server."`
	Demo      demoCmd      `cmd:"" help:"See a payment cross hops that break, and which guard catches what."`
	Version   versionCmd   `cmd:"" help:"Show the version."`

	BenchServer benchServerCmd `cmd:"" hidden:"" help:"A server that bench measures."`
}

// Run runs the subcommand that args name and returns the exit code. It ends early when
// ctx is cancelled.
func (p *program) Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := checkText(args, os.Environ()); err != nil {
		return p.fail(stderr, err)
	}
	parsed, err := newParser(stdout, stderr).Parse(args)
	switch {
	case errors.Is(err, errShown):
		return exitOK
	case err != nil && exitCode(err) == exitNoAnswer:
		return p.fail(stderr, err)
	case err != nil:
		return p.fail(stderr, parseError(err))
	}
	err = parsed.Run(&session{program: p, ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr})
	return p.fail(stderr, err)
}

// newParser makes the parser of the command line.
func newParser(stdout, stderr io.Writer) *kong.Kong {
	parser, err := kong.New(&cli{},
		kong.Name("idemd"),
		kong.Description("Idempotency as a service: of all who want to act on a key, one is told to, and the rest what happened."),
		kong.NoDefaultHelp(),
		kong.DefaultEnvars("IDEMD"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"user": userName(), "breaks": demoNames(demo.Breaks), "guards": demoNames(demo.Guards)},
		kong.Writers(stdout, stderr),
	)
	if err != nil {
		panic(err) // the command line above contradicts itself
	}
	return parser
}

// fail says on one line what went wrong, if anything did, and returns the exit code.
func (p *program) fail(stderr io.Writer, err error) int {
	if err != nil && !errors.Is(err, errShown) {
		fmt.Fprintf(stderr, "idemd: %s\n", oneLine(withoutPassword(err.Error())))
	}
	return exitCode(err)
}

// parseError is a refusal by the parser, with the command whose help explains it.
func parseError(err error) error {
	help := "idemd"
	var refused *kong.ParseError
	if errors.As(err, &refused) {
		if command := refused.Context.Selected(); command != nil {
			help = command.FullPath()
		}
	}
	code := exitUsage
	if help == "idemd run" {
		code = exitRunFailed
	}
	text := strings.Replace(err.Error(), `but got "EOL" (<EOL>)`, "but the command line ends", 1)
	text = strings.Replace(text, "expected value value but", "a value is expected, but", 1)
	return exitError{fmt.Errorf("%s; see %s --help", text, help), code}
}

// userName is who runs the program, as far as the process knows.
func userName() string {
	if name := os.Getenv("USER"); name != "" {
		return name
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}

var errShown = errors.New("what was asked for was shown")

// helpFlag shows the help of the chosen subcommand, whatever else is on the command line.
type helpFlag bool

// BeforeReset is called by kong if the flag is given.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	out := ctx.Stdout
	var text strings.Builder
	ctx.Stdout = &text
	err := ctx.PrintUsage(false)
	if err == nil {
		_, err = io.WriteString(out, withAlternatives(text.String(), ctx.Flags()))
	}
	if err != nil {
		return unwritten(err)
	}
	return errShown
}

// withAlternatives has the line of usage say that of required flags which exclude each other one is enough.
func withAlternatives(usage string, flags []*kong.Flag) string {
	groups := map[string][]string{}
	for _, flag := range flags {
		for _, group := range flag.Xor {
			if flag.Required {
				groups[group] = append(groups[group], flag.Summary())
			}
		}
	}
	for _, group := range groups {
		usage = strings.Replace(usage, strings.Join(group, " "), "("+strings.Join(group, " | ")+")", 1)
	}
	return usage
}

// versionFlag shows the version, whatever else is on the command line.
type versionFlag bool

// BeforeReset is called by kong if the flag is given.
func (versionFlag) BeforeReset(ctx *kong.Context) error {
	if _, err := fmt.Fprintln(ctx.Stdout, versionText()); err != nil {
		return unwritten(err)
	}
	return errShown
}

// exitError is an error with an exit code of its own.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

func exitCode(err error) int {
	var coded exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	default:
		return exitFailed
	}
}

func usageError(format string, args ...any) error {
	return exitError{fmt.Errorf(format, args...), exitUsage}
}

// unwritten is the error of an answer that came and could not be shown.
func unwritten(err error) error {
	return exitError{fmt.Errorf("the answer could not be written: %w", err), exitNoAnswer}
}
