package main

import (
	"errors"

	"github.com/idemd/idemd/cmd/idemd/internal/bench"
)

// benchServerCmd is one of the servers that bench starts, in a process of its own.
type benchServerCmd struct {
	Kind         string `arg:"" enum:"idemd,bare,guarded"`
	DataDir      string
	SyncFile     string
	Addr         string
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
	n, err := startNode(s, &serveCmd{GrpcAddr: "127.0.0.1:0", DataDir: &c.DataDir, LogLevel: "error"})
	if err != nil {
		return err
	}
	err = bench.ServeChild(s.stdin, s.stdout, n.listener.Addr().String(), func() bench.Stats {
		return bench.Stats{CPU: bench.ProcessorTime(), Operations: n.commits.operations.Load(), Syncs: n.commits.syncs.Load()}
	})
	return errors.Join(err, n.stop(s.ctx))
}
