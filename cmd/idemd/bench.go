package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/cmd/idemd/internal/bench"
)

// benchCmd measures idemd against a bare gRPC server.
type benchCmd struct {
	// A variable of its own: nobody means to load the server that IDEMD_ADDR names.
	Addr         string   `env:"IDEMD_BENCH_ADDR" placeholder:"HOST:PORT" help:"Measure this server instead of one that is started for it. Its keys stay until their retention ends."`
	Namespace    string   `default:"default" help:"Namespace of the keys (${default})."`
	Ops          []string `default:"claim,pair,replay,wait,client-claim,client-pair,client-replay,guarded,guarded-replay,forwarded" help:"What to measure: claim, pair (claim and complete), replay (claim of a completed key), wait (pair, and a claim that waits for it), client-claim, client-pair and client-replay (the same by the Go client), guarded (call of a guarded method that does nothing), guarded-replay (repeat of such a call), forwarded (replay that one region sends on to another) (${default})."`
	Concurrency  []int    `default:"64,256" help:"How many callers at once, for each of these (${default})."`
	Duration     span     `default:"1s" help:"Length of a round, on the bare server and on idemd each (${default})."`
	Rounds       int      `default:"5" help:"Rounds; the ratio is the median of theirs (${default})."`
	Conns        int      `default:"4" help:"Connections that the callers share (${default})."`
	OutcomeBytes int      `default:"128" help:"Size of an outcome's body (${default})."`
	Dir          string   `default:"." type:"existingdir" help:"Where to make the temporary data directory: the disk that is measured."`
	Output       string   `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Help is called by kong.
func (c *benchCmd) Help() string {
	return "It takes about 2 × (4 + ops × concurrencies) × (1 + rounds) × duration: as it is, five minutes. Interrupted, it shows what was measured until then."
}

// Validate is called by kong.
func (c *benchCmd) Validate() error {
	for _, op := range c.Ops {
		if !slices.Contains(bench.OpNames, op) {
			return fmt.Errorf("--ops: there is no %q; there are %s", op, strings.Join(bench.OpNames, ", "))
		}
	}
	if len(c.Concurrency) == 0 || slices.Min(c.Concurrency) < 1 || c.Rounds < 1 || c.Conns < 1 {
		return fmt.Errorf("--concurrency, --rounds and --conns must be positive")
	}
	if c.OutcomeBytes < 0 || c.OutcomeBytes > bench.MaxBodyBytes {
		return fmt.Errorf("--outcome-bytes: %d is not from 0 to %d", c.OutcomeBytes, bench.MaxBodyBytes)
	}
	return nil
}

// benchReport is what bench finds out.
type benchReport struct {
	Target string `json:"target"`
	// SyncP50 is the median of a sync of 512 bytes in the data directory.
	SyncP50 float64 `json:"fdatasync_p50_us"`
	// Lone is a claim by a single caller, who has nobody to share a sync with; last one that is
	// forwarded, if that is measured.
	Lone []bench.Row `json:"lone_claim"`
	Rows []bench.Row `json:"rows"`
}

// Run is called by kong.
func (c *benchCmd) Run(s *session) (err error) {
	dir, err := os.MkdirTemp(c.Dir, "idemd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	options := bench.Options{
		Addr: c.Addr, Namespace: c.Namespace, Duration: time.Duration(c.Duration), Rounds: c.Rounds,
		Conns: c.Conns, OutcomeBytes: c.OutcomeBytes,
	}
	defer func() {
		for _, child := range slices.Backward(options.Children) {
			if stopErr := child.Stop(); s.ctx.Err() == nil { // else the signal may have reached it too
				err = errors.Join(err, stopErr)
			}
		}
	}()
	if err := c.startServers(s, &options, dir); err != nil {
		return err
	}
	report := benchReport{Target: c.Addr}
	if c.Addr == "" {
		report.Target = "idemd serve on an empty directory, every write synced"
	}
	sync, err := bench.SyncLatency(dir)
	if err != nil {
		return err
	}
	report.SyncP50 = float64(sync.Nanoseconds()) / 1000

	err = c.measure(s, options, &report)
	if s.ctx.Err() != nil {
		err = errors.New("interrupted: what was measured until then is shown")
	} else if err != nil {
		err = benchError(&options, err)
	}
	return errors.Join(err, c.show(s, &report))
}

// measure fills the report as far as it comes. Text is shown row by row, as the rows come.
func (c *benchCmd) measure(s *session, o bench.Options, report *benchReport) (err error) {
	lone, all := o, o
	lone.Ops, lone.Callers = []string{"claim", "client-claim", "bare-sync"}, []int{1}
	if o.Near != "" {
		lone.Ops = append(lone.Ops, forwardedOp)
	}
	all.Ops, all.Callers = c.Ops, c.Concurrency
	fmt.Fprintf(s.stderr, "this takes about %.0f s\n", (lone.Takes() + all.Takes()).Seconds())

	number := 0
	progress := func(text string) {
		number++
		fmt.Fprintf(s.stderr, "measuring %d of %d: %s\n", number, lone.Comparisons()+all.Comparisons(), text)
	}
	lone.Progress, all.Progress = progress, progress
	if c.Output == "text" {
		measured := func(rows []bench.Row) { benchRows(s.stdout, rows) }
		lone.Measured, all.Measured = measured, measured
		fmt.Fprintf(s.stdout, benchColumns, "OP", "CALLERS", "OPS/S", "P50", "P99", "OF BARE", "CPU/OP", "OPS/SYNC")
	}
	if report.Lone, err = bench.Run(s.ctx, lone); err != nil {
		return err
	}
	report.Rows, err = bench.Run(s.ctx, all)
	return err
}

// startServers starts what is measured and what it is compared with, each in a process of
// its own.
func (c *benchCmd) startServers(s *session, o *bench.Options, dir string) (err error) {
	if o.Addr == "" {
		if o.Addr, err = c.startServer(s, o, "idemd", "--data-dir="+filepath.Join(dir, "data")); err != nil {
			return err
		}
	}
	if o.Bare, err = c.startServer(s, o, "bare", "--sync-file="+filepath.Join(dir, "bare-sync")); err != nil {
		return err
	}
	if slices.ContainsFunc(c.Ops, func(op string) bool { return strings.HasPrefix(op, "guarded") }) {
		o.Guarded, err = c.startServer(s, o, "guarded", "--addr="+o.Addr, "--namespace="+o.Namespace, fmt.Sprint("--conns=", o.Conns))
	}
	if err == nil && slices.Contains(c.Ops, forwardedOp) {
		err = c.startRegions(s, o, dir)
	}
	return err
}

func (c *benchCmd) startServer(s *session, o *bench.Options, kind string, args ...string) (addr string, err error) {
	args = append([]string{"bench-server", kind, fmt.Sprint("--outcome-bytes=", c.OutcomeBytes)}, args...)
	child, err := bench.StartChild(s.ctx, s.exe, args...)
	if err != nil {
		return "", err
	}
	o.Children = append(o.Children, child)
	return child.Addr, nil
}

func (c *benchCmd) show(s *session, r *benchReport) error {
	if c.Output == "json" {
		if err := json.NewEncoder(s.stdout).Encode(r); err != nil {
			return unwritten(err)
		}
		return nil
	}
	p := &page{}
	benchText(p, r)
	return p.print(s.stdout)
}

// benchError is told as the error of any other call to that server.
func benchError(o *bench.Options, err error) error {
	var refused interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &refused) {
		return err
	}
	asked := &remoteFlags{Addr: o.Addr}
	return asked.explain(refused.GRPCStatus().Err(), o.Duration)
}

// forwardedOp is what needs regions.
const forwardedOp = "forwarded"

// benchColumns are as wide as what they hold: rows are shown before the next are known.
const benchColumns = "%-21s  %7s  %6s  %9s  %9s  %7s  %8s  %8s\n"

func benchRows(w io.Writer, rows []bench.Row) {
	for _, row := range rows {
		op := row.Op
		if row.Of != "" {
			op = fmt.Sprintf("%s (%s)", row.Op, row.Of)
		}
		perSync := "-"
		if row.OpsPerSync > 0 {
			perSync = fmt.Sprintf("%.1f", row.OpsPerSync)
		}
		fmt.Fprintf(w, benchColumns, op, fmt.Sprint(row.Callers), fmt.Sprintf("%.0f", row.PerSecond),
			fmt.Sprintf("%.0f µs", row.P50), fmt.Sprintf("%.0f µs", row.P99), fmt.Sprintf("%.2f", row.RatioToBare),
			fmt.Sprintf("%.0f µs", row.CPU), perSync)
	}
}

// benchText explains the rows.
func benchText(p *page, r *benchReport) {
	p.line("")
	p.line("target: %s", r.Target)
	p.line("bare (X): the same messages as in X, answered from memory by a gRPC server; one op is one call")
	p.line("of bare: ops/s × calls per op ÷ bare calls/s, the median over the rounds; so a pair is held against half the bare rate, a wait against a third; ops/s are medians of their own, so their quotient is not quite that ratio")
	p.line("guarded: a call of a gRPC server with a guard in front, which asks idemd twice, and once for a replay; held against bare calls of the same server without it")
	p.line("forwarded: a replay that one idemd sends on to another, its home; held against calls that a bare server sends on to another")
	p.line("cpu/op: user and system time of caller and server together")
	if len(r.Lone) == 0 { // interrupted before
		return
	}
	for i, what := range []string{"lone claim by a call", "lone claim by the Go client", "lone call of a bare server that syncs once"} {
		if len(r.Lone) < 2*i+2 {
			return
		}
		bare, lone := r.Lone[2*i], r.Lone[2*i+1]
		p.line("%s: p50 %.0f µs = bare %.0f µs + %.1f × fdatasync (p50 %.0f µs)",
			what, lone.P50, bare.P50, (lone.P50-bare.P50)/r.SyncP50, r.SyncP50)
	}
	if n := len(r.Lone); r.Lone[n-1].Op == forwardedOp {
		bare, lone := r.Lone[n-2], r.Lone[n-1]
		p.line("lone forwarded replay: p50 %.0f µs = %.2f × bare %.0f µs", lone.P50, lone.P50/bare.P50, bare.P50)
	}
}
