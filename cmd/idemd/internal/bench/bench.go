// Package bench compares an idemd server with a bare gRPC server: the same protobuf
// messages of the same sizes over the same number of loopback connections, answered at
// once from memory. Rounds on the two alternate, so that a machine that speeds up or
// slows down does so for both, and the ratio reported is the median of the rounds' ratios.
//
// A guarded operation is a call of the bare server with a guard in front, which asks idemd.
//
// The load generator and each of the servers are processes of their own, as callers and
// servers are, and share the machine.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/client"
	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// Options says what to measure.
type Options struct {
	// Addr is where idemd listens, Bare where the bare server does, and Guarded where one
	// with a guard that asks idemd does; it is empty if no guarded operation is measured.
	Addr, Bare, Guarded string
	// Near is where an idemd listens that sends what it is asked on to another one's region, and
	// Relay where a bare server does so; empty if no forwarded operation is measured.
	Near, Relay string
	// Namespace receives the keys, but for those of forwarded operations, which go to "default".
	Namespace string
	// Ops are names of operations, see [OpNames]; Callers are how many call at once.
	Ops     []string
	Callers []int
	// Duration is how long each round lasts on either server; Rounds is how many there are.
	Duration time.Duration
	Rounds   int
	// Conns is how many connections the callers share.
	Conns int
	// OutcomeBytes is the size of a stored outcome's body.
	OutcomeBytes int
	// Children are the servers that work can be measured of.
	Children []*Child
	// Progress, if not nil, is told what is about to be measured.
	Progress func(text string)
	// Measured, if not nil, is told each pair of rows as soon as there is one.
	Measured func(rows []Row)
}

// Comparisons is how many times idemd is held against the bare server.
func (o *Options) Comparisons() int { return len(o.Ops) * len(o.Callers) }

// Takes is about how long Run takes: each comparison has one round more than is counted, to
// warm up, and each round two sides.
func (o *Options) Takes() time.Duration {
	return time.Duration(o.Comparisons()*2*(o.Rounds+1)) * o.Duration
}

// Row is one line of the result.
type Row struct {
	// Op is an operation, or "bare" for the bare server's calls beside operation Of.
	Op      string `json:"op"`
	Of      string `json:"of,omitempty"`
	Callers int    `json:"callers"`
	// PerSecond is the median over the rounds; P50 and P99 are over all of them.
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	// Calls is how many gRPC calls idemd gets for one operation. RatioToBare is the median of
	// operations/s × calls ÷ bare calls/s: 0.5 for an operation of two calls means a
	// quarter as many operations as the bare server does calls.
	Calls       int     `json:"calls_per_op"`
	RatioToBare float64 `json:"ratio_to_bare"`
	// CPU is the processor time, the caller's and the children's, that one operation took.
	CPU float64 `json:"cpu_us_per_op"`
	// OpsPerSync is how many of the store's operations shared one sync; absent if none wrote.
	OpsPerSync float64 `json:"operations_per_sync,omitempty"`
}

// Run measures every operation with every number of callers. With an error it returns what
// was measured before.
func Run(ctx context.Context, o Options) ([]Row, error) {
	sides := map[string]*side{}
	for _, addr := range []string{o.Addr, o.Bare, o.Guarded, o.Near, o.Relay} {
		if addr == "" {
			continue
		}
		s, err := dial(addr, o.Conns)
		if err != nil {
			return nil, err
		}
		defer s.close()
		sides[addr] = s
	}
	var rows []Row
	for _, name := range o.Ops {
		for _, callers := range o.Callers {
			c := comparison{Options: o, op: ops[name], name: name, callers: callers, idemd: sides[o.Addr], bare: sides[o.Bare]}
			switch {
			case c.op.guarded:
				c.idemd = sides[o.Guarded]
			case c.op.forwarded:
				c.Namespace, c.idemd, c.bare = store.DefaultNamespace, sides[o.Near], sides[o.Relay]
			case c.op.onBare:
				c.idemd = c.bare
			}
			pair, err := c.run(ctx)
			if err != nil {
				return rows, fmt.Errorf("%s with %d callers: %w", name, callers, err)
			}
			if o.Measured != nil {
				o.Measured(pair)
			}
			rows = append(rows, pair...)
		}
	}
	return rows, nil
}

// side is the connections to one of the servers.
type side struct {
	conns   []*grpc.ClientConn
	clients []*client.Client // one for each, if they are used
	next    atomic.Uint64    // of those that the guard's calls go to in turn
}

func dial(addr string, n int) (*side, error) {
	s := &side{}
	for range n {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			s.close()
			return nil, err
		}
		s.conns = append(s.conns, conn)
	}
	return s, nil
}

// ask is how the i-th worker asks.
func (s *side) ask(i int, byGoClient bool) idemdv1.IdempotencyServiceClient {
	i %= len(s.conns)
	if !byGoClient {
		return idemdv1.NewIdempotencyServiceClient(s.conns[i])
	}
	for len(s.clients) <= i {
		s.clients = append(s.clients, client.New(s.conns[len(s.clients)]))
	}
	return byClient{client: s.clients[i]}
}

func (s *side) close() {
	for _, c := range s.clients {
		c.Close() //nolint:errcheck // nothing is lost with it
	}
	for _, conn := range s.conns {
		conn.Close() //nolint:errcheck // nothing is lost with it
	}
}

// comparison is one operation with one number of callers.
type comparison struct {
	Options
	op          op
	name        string
	callers     int
	idemd, bare *side // what is measured, whichever server that is, and what it is held against
}

func (c *comparison) run(ctx context.Context) ([]Row, error) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf("%s, %d callers", c.name, c.callers))
	}
	bareWorkers := c.workers(c.bare)
	idemdWorkers := c.workers(c.idemd)
	for _, w := range idemdWorkers {
		if err := c.op.prepare(ctx, w); err != nil {
			return nil, err
		}
	}
	var bare, idemd series
	for round := range c.Rounds + 1 {
		b, err := c.round(ctx, bareWorkers, c.op.bareCall)
		if err != nil {
			return nil, err
		}
		i, err := c.round(ctx, idemdWorkers, c.op.run)
		if err != nil {
			return nil, err
		}
		if round > 0 { // the first one warms up
			bare.add(b)
			idemd.add(i)
		}
	}
	return c.rows(&bare, &idemd), nil
}

func (c *comparison) rows(bare, idemd *series) []Row {
	ratios := make([]float64, c.Rounds)
	for i := range ratios {
		ratios[i] = idemd.rounds[i].perSecond() * float64(c.op.calls) / bare.rounds[i].perSecond()
	}
	b := bare.row("bare", c.callers)
	b.Of, b.Calls, b.RatioToBare = c.name, 1, 1
	r := idemd.row(c.name, c.callers)
	r.Calls, r.RatioToBare, r.OpsPerSync = c.op.calls, median(ratios), idemd.opsPerSync()
	return []Row{b, r}
}

func (c *comparison) workers(s *side) []*worker {
	workers := make([]*worker, c.callers)
	for i := range workers {
		workers[i] = newWorker(s.ask(i, c.op.client && s == c.idemd), &c.Options)
	}
	return workers
}

// round lets every worker repeat call until the time is over.
func (c *comparison) round(ctx context.Context, workers []*worker, call func(context.Context, *worker) error) (sample, error) {
	s := sample{latencies: make([][]time.Duration, len(workers))}
	errs := make([]error, len(workers))
	before, err := c.stats()
	if err != nil {
		return s, err
	}
	start := time.Now()
	deadline := start.Add(c.Duration)
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() { s.latencies[i], errs[i] = repeat(ctx, w, call, deadline) })
	}
	wg.Wait()
	s.elapsed = time.Since(start)
	after, err := c.stats()
	s.Stats = after.since(before)
	return s, cmp.Or(append(errs, err)...)
}

// stats is what this process and the children have done.
func (c *comparison) stats() (Stats, error) {
	sum := Stats{CPU: ProcessorTime()}
	for _, child := range c.Children {
		s, err := child.Stats()
		if err != nil {
			return sum, fmt.Errorf("a server under measurement has ended: %w", err)
		}
		sum = sum.add(s)
	}
	return sum, nil
}

func repeat(ctx context.Context, w *worker, call func(context.Context, *worker) error, deadline time.Time) ([]time.Duration, error) {
	var latencies []time.Duration
	for start := time.Now(); start.Before(deadline); {
		if err := call(ctx, w); err != nil {
			return latencies, err
		}
		end := time.Now()
		latencies = append(latencies, end.Sub(start))
		start = end
	}
	return latencies, nil
}

// sample is what one round measured.
type sample struct {
	Stats
	latencies [][]time.Duration
	elapsed   time.Duration
}

func (s *sample) count() int {
	n := 0
	for _, l := range s.latencies {
		n += len(l)
	}
	return n
}

func (s *sample) perSecond() float64 { return float64(s.count()) / s.elapsed.Seconds() }

// series is the samples of one server.
type series struct{ rounds []sample }

func (s *series) add(r sample) { s.rounds = append(s.rounds, r) }

func (s *series) row(op string, callers int) Row {
	var rates []float64
	var all []time.Duration
	var cpu time.Duration
	for i := range s.rounds {
		rates = append(rates, s.rounds[i].perSecond())
		cpu += s.rounds[i].CPU
		all = append(all, slices.Concat(s.rounds[i].latencies...)...)
	}
	slices.Sort(all)
	return Row{
		Op: op, Callers: callers, PerSecond: median(rates),
		P50: micros(quantile(all, 0.50)), P99: micros(quantile(all, 0.99)),
		CPU: micros(cpu) / float64(max(len(all), 1)),
	}
}

func (s *series) opsPerSync() float64 {
	var sum Stats
	for i := range s.rounds {
		sum = sum.add(s.rounds[i].Stats)
	}
	if sum.Syncs == 0 {
		return 0
	}
	return float64(sum.Operations) / float64(sum.Syncs)
}

func median(values []float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), 0.5)
}

// quantile returns the q-quantile of sorted values, zero of none.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
