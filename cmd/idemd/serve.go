package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/idemd/idemd/server"
)

const (
	// drainTime is how long running calls have to finish after the first signal.
	drainTime = 30 * time.Second
	// servesOn begins the line that says that the server is ready.
	servesOn = "idemd serves on "
)

// serveCmd runs the server.
type serveCmd struct {
	GrpcAddr      string `default:"127.0.0.1:7600" placeholder:"HOST:PORT" help:"Where to serve gRPC (${default})."`
	AdminAddr     string `default:"127.0.0.1:7601" placeholder:"HOST:PORT" help:"Where to serve /metrics and /healthz; empty: nowhere (${default})."`
	DataDir       string `default:"idemd-data" placeholder:"DIR" help:"Directory of the store, made if it does not exist (./${default})."`
	AllowInsecure bool   `help:"Listen where other machines can connect, though there is no TLS: whoever reaches the port can claim and complete every key."`
	LogLevel      string `enum:"debug,info,warn,error" default:"info" help:"debug (every call), info (refusals and operators' actions), warn or error (${default})."`
	LogFormat     string `enum:"text,json" default:"text" help:"text or json, on standard error (${default})."`
}

// Run is called by kong. It serves until the session's context is cancelled.
func (c *serveCmd) Run(s *session) error {
	if err := c.checkDataDir(); err != nil {
		return err
	}
	c.warn(s)
	n, err := startNode(s, c)
	if err != nil {
		return err
	}
	c.greet(s, n)
	select {
	case <-s.ctx.Done():
		n.logger.Info("draining; a second signal ends the process at once", "at_most", drainTime)
	case err = <-n.failed:
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), drainTime)
	defer cancel()
	if stopErr := n.stop(ctx); err == nil {
		err = stopErr
	}
	return err
}

func (c *serveCmd) checkDataDir() error {
	if c.DataDir == "" {
		return usageError("--data-dir is empty: name a directory, which is made if it does not exist")
	}
	if info, err := os.Stat(c.DataDir); err == nil && !info.IsDir() {
		return usageError("--data-dir %s is not a directory", c.DataDir)
	}
	return nil
}

// warn says it aloud if other machines can connect.
func (c *serveCmd) warn(s *session) {
	for _, addr := range []string{c.GrpcAddr, c.AdminAddr} {
		if errors.Is(checkAddr(addr, false), server.ErrInsecureAddress) && c.AllowInsecure {
			fmt.Fprintf(s.stderr, "WARNING: other machines can reach %s, in plain text and without a password: whoever connects can read, claim and complete every key\n", addr)
		}
	}
}

// greet says where the server is and what to try.
func (c *serveCmd) greet(s *session, n *node) {
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		dir = c.DataDir
	}
	p := &page{}
	p.line("%s%s", servesOn, n.listener.Addr())
	p.field("data directory", dir)
	if n.admin != nil {
		p.field("metrics", fmt.Sprintf("http://%s/metrics", n.admin.Addr()))
	}
	p.line("try next, in another terminal:")
	key := append(reachBy(n.listener.Addr().String()), "--id", "order-1001", "--attempt", "try-1")
	p.line("  %s", s.command(slices.Concat([]string{"claim"}, key)...))
	p.line("  %s", s.command(slices.Concat([]string{"complete"}, key, []string{"--outcome", "charged 42 EUR"})...))
	_ = p.print(s.stdout) // a server whose terminal is gone still serves
}

// reachBy are the flags with which a client on this machine reaches a listener.
func reachBy(addr string) []string {
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	var args []string
	if addr != defaultAddr {
		args = append(args, "--addr", addr)
	}
	if server.CheckListenAddr(addr, false) != nil {
		args = append(args, "--allow-insecure")
	}
	return args
}

func (c *serveCmd) newLogger(s *session) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // kong has checked it
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(s.stderr, options))
	}
	return slog.New(slog.NewTextHandler(s.stderr, options))
}
