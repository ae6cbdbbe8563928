package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	// newToAll says that the store was made just now.
	newToAll = ", new: it knows no key"
)

// serveCmd runs the server.
type serveCmd struct {
	GrpcAddr      string  `default:"127.0.0.1:7600" placeholder:"HOST:PORT" help:"Where to serve gRPC (${default})."`
	AdminAddr     string  `default:"127.0.0.1:7601" placeholder:"HOST:PORT" help:"Where to serve /metrics and /healthz; empty: nowhere (${default})."`
	DataDir       *string `placeholder:"DIR" help:"Directory of the embedded store, made if it does not exist (./idemd-data)."`
	MustExist     bool    `help:"Start only on a store that is there: none is made, as where its disk is not mounted."`
	restoredFlags `embed:""`
	databaseFlags `embed:""`
	StoreConns    *int `placeholder:"N" help:"With --store: how many connections this process opens at most (four per core, at least 8)."`
	topologyFlags `embed:""`
	identityFlags `embed:""`
	AllowInsecure bool   `help:"Listen where other machines can connect also without TLS and a policy: whoever reaches the port can claim and complete every key."`
	LogLevel      string `enum:"debug,info,warn,error" default:"info" help:"debug (every call), info (refusals and operators' actions), warn or error (${default})."`
	LogFormat     string `enum:"text,json" default:"text" help:"text or json, on standard error (${default})."`
}

// Run is called by kong. It serves until the session's context is cancelled.
func (c *serveCmd) Run(s *session) error {
	if err := c.checkStore(); err != nil {
		return err
	}
	c.warn(s)
	n, err := startNode(s, c)
	if err != nil {
		return err
	}
	n.warnNew(c)
	c.greet(s, n)
	n.logger.Info("serving", "address", n.listener.Addr().String(), "store", c.keptIn())
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

// checkStore checks that one store is named. What is not named is the embedded one, but an
// empty name is not taken for that: two servers would each have a store of their own.
func (c *serveCmd) checkStore() error {
	switch {
	case c.Store != nil && c.DataDir != nil:
		return usageError("both %s and %s are given: keys are either in a database or in a directory; leave one out, or unset its variable",
			named("--store", "IDEMD_STORE", *c.Store), named("--data-dir", "IDEMD_DATA_DIR", *c.DataDir))
	case c.Store != nil && c.StoreConns != nil && (*c.StoreConns < 1 || *c.StoreConns > math.MaxInt32):
		return usageError("--store-conns %d: it must be 1 or more; left out, it is four per core, at least 8", *c.StoreConns)
	case c.Store != nil && (c.BackupRoot != nil || c.RestoredFrom != ""):
		return usageError("--backup-root and --restored-from are for an embedded store: a database is backed up with its own tools, and after it was restored, idemd recovery begin")
	case c.Store != nil:
		return c.check()
	case c.StoreConns != nil:
		return usageError("--store-conns is for --store")
	case c.Region != defaultRegion && c.Topology == "":
		return usageError("--region is for --store, or for --topology")
	}
	dir := c.dataDir()
	if dir == "" {
		return usageError("--data-dir is empty: name a directory, which is made if it does not exist")
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return usageError("--data-dir %s is not a directory", dir)
	}
	return c.checkRoot(dir)
}

// named is how a value was given: by the flag, or by its variable, which is easily forgotten.
func named(flag, variable, value string) string {
	if set, ok := os.LookupEnv(variable); ok && set == value {
		return flag + " (in the variable " + variable + ")"
	}
	return flag
}

// conns is how many connections are opened at most, 0 for what the store chooses.
func (c *serveCmd) conns() int {
	if c.StoreConns == nil {
		return 0
	}
	return *c.StoreConns
}

// dataDir is where the embedded store is.
func (c *serveCmd) dataDir() string {
	if c.DataDir == nil {
		return "idemd-data"
	}
	return *c.DataDir
}

// warn says it aloud if other machines can connect.
func (c *serveCmd) warn(s *session) {
	for _, addr := range []string{c.GrpcAddr, c.AdminAddr} {
		if errors.Is(checkAddr(addr, c.secure()), server.ErrInsecureAddress) && c.AllowInsecure {
			fmt.Fprintf(s.stderr, "WARNING: other machines can reach %s, %s\n", addr, c.exposure())
		}
	}
}

// greet says where the server is and what to try.
func (c *serveCmd) greet(s *session, n *node) {
	p := &page{}
	p.line("%s%s", servesOn, n.listener.Addr())
	c.greetStore(p, n.made)
	if n.admin != nil {
		p.field("metrics", c.metricsURL(n.admin.Addr().String()))
	}
	if c.given() {
		c.greetIdentity(p)
		_ = p.print(s.stdout)
		return
	}
	p.line("try next, in another terminal:")
	key := append(reachBy(n.listener.Addr().String()), "--id", "order-1001", "--attempt", "try-1")
	p.line("  %s", s.command(slices.Concat([]string{"claim"}, key)...))
	p.line("  %s", s.command(slices.Concat([]string{"complete"}, key, []string{"--outcome", "charged 42 EUR"})...))
	_ = p.print(s.stdout) // a server whose terminal is gone still serves
}

// metricsURL is where the metrics are.
func (c *serveCmd) metricsURL(addr string) string {
	scheme := "http"
	if c.TLSCert != "" && server.CheckListenAddr(addr, false) != nil {
		scheme = "https"
	}
	return scheme + "://" + addr + "/metrics"
}

// greetIdentity says what callers have to show.
func (c *serveCmd) greetIdentity(p *page) {
	if c.TLSCert != "" {
		p.field("TLS", "certificate "+c.TLSCert)
	}
	if c.Policy != "" {
		p.field("callers", "those in "+c.Policy)
	}
}

// greetStore says where the keys are.
func (c *serveCmd) greetStore(p *page, made bool) {
	news := ""
	if made {
		news = newToAll
	}
	if c.Store != nil {
		p.field("database", c.place())
		p.field("region", c.Region+news)
		return
	}
	p.field("data directory", c.absDataDir()+news)
}

// keptIn is where the keys are, on one line and without a secret.
func (c *serveCmd) keptIn() string {
	if c.Store != nil {
		return fmt.Sprintf("database %s, region %s", c.place(), c.Region)
	}
	return "directory " + c.absDataDir()
}

func (c *serveCmd) absDataDir() string {
	if dir, err := filepath.Abs(c.dataDir()); err == nil {
		return dir
	}
	return c.dataDir()
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
