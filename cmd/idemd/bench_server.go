package main

import (
	"cmp"
	"errors"

	"github.com/idemd/idemd/cmd/idemd/internal/bench"
)

// benchServerCmd is one of the servers that bench starts, in a process of its own.
type benchServerCmd struct {
	Kind         string `arg:"" enum:"idemd,bare,relay,guarded"`
	DataDir      string
	SyncFile     string
	Addr         string // of the server that is asked by this one; of idemd, its own
	Region       string
	Topology     string
	Namespace    string
	Conns        int
	OutcomeBytes int
}

// Run is called by kong.
func (c *benchServerCmd) Run(s *session) error {
	switch c.Kind {
	case "idemd":
		return c.serveIdemd(s)
	case "guarded":
		return c.serve(s, func() (string, func(), error) {
			return bench.StartGuarded(&bench.Options{Addr: c.Addr, Namespace: c.Namespace, Conns: c.Conns, OutcomeBytes: c.OutcomeBytes})
		})
	case "relay":
		return c.serve(s, func() (string, func(), error) { return bench.StartRelay(c.Addr) })
	default:
		return c.serve(s, func() (string, func(), error) { return bench.StartBare(c.OutcomeBytes, c.SyncFile) })
	}
}

func (c *benchServerCmd) serve(s *session, start func() (addr string, stop func(), err error)) error {
	addr, stop, err := start()
	if err != nil {
		return err
	}
	defer stop()
	return bench.ServeChild(s.stdin, s.stdout, addr, func() bench.Stats { return bench.Stats{CPU: bench.ProcessorTime()} })
}

// serveIdemd does what serve does.
func (c *benchServerCmd) serveIdemd(s *session) error {
	serve := &serveCmd{GrpcAddr: cmp.Or(c.Addr, "127.0.0.1:0"), DataDir: &c.DataDir, LogLevel: "error"}
	serve.Region, serve.Topology = c.Region, c.Topology
	n, err := startNode(s, serve)
	if err != nil {
		return err
	}
	err = bench.ServeChild(s.stdin, s.stdout, n.listener.Addr().String(), func() bench.Stats {
		return bench.Stats{CPU: bench.ProcessorTime(), Operations: n.commits.operations.Load(), Syncs: n.commits.syncs.Load()}
	})
	return errors.Join(err, n.stop(s.ctx))
}
