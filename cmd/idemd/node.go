package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/idemd/idemd/region"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/sqlstore"
)

// node is a running server with its store and listeners.
type node struct {
	listener net.Listener
	admin    net.Listener        // nil if there is none
	store    closingStore        // nil until it is open
	identity *identity.Authority // nil: nobody is told apart
	region   *region.Region      // nil: there are no regions
	standIns []closingStore      // stores of other regions
	server   *server.Server
	backup   server.BackupFunc // nil: there are none
	notice   func() string     // nil, or what an operator should see to
	// noticeForAll is the same without the names of namespaces. Nil: it has none.
	noticeForAll func() string
	made         bool // the store was not there
	commits      *commits
	logger       *slog.Logger
	// failed gets the error of a listener that stopped by itself.
	failed chan error
}

// closingStore is a store that this process closes.
type closingStore interface {
	store.Backend
	io.Closer
}

// startNode starts what c describes. The addresses are checked and taken before the
// directory is touched, so a refusal leaves nothing behind.
func startNode(s *session, c *serveCmd) (*node, error) {
	if s.tune != nil {
		s.tune()
	}
	n := &node{logger: c.newLogger(s), failed: make(chan error, 2)}
	topology, err := c.checkTopology()
	if err != nil {
		return nil, err
	}
	if err := n.loadIdentity(c); err != nil {
		return nil, err
	}
	if err := n.listen(c); err != nil {
		return nil, err
	}
	metrics, err := newMetrics()
	if err == nil {
		err = n.open(s, c, metrics)
	}
	if err == nil {
		err = n.join(s, c, topology, metrics)
	}
	if err == nil {
		n.server, err = server.New(n.serverConfig(c, metrics))
	}
	if err != nil {
		return nil, errors.Join(err, n.abandon())
	}
	go func() { n.end(n.server.Serve(n.listener)) }()
	if n.admin != nil {
		go func() { n.end(n.server.ServeAdmin(n.admin)) }()
	}
	return n, nil
}

func (n *node) serverConfig(c *serveCmd, metrics *server.Metrics) server.Config {
	config := server.Config{
		Backend: n.store, Metrics: metrics, Logger: n.logger, AllowInsecure: c.AllowInsecure, Notice: n.notice, NoticeForAll: n.noticeForAll, Identity: n.identity, Backup: n.backup,
	}
	if n.region != nil {
		config.Regions, config.Mover = n.region, n.region
	}
	return config
}

func (n *node) end(err error) {
	if err != nil {
		n.failed <- err
	}
}

func (n *node) listen(c *serveCmd) (err error) {
	if err := checkAddr(c.GrpcAddr, c.AllowInsecure || c.secure()); err != nil {
		return usageError("--grpc-addr: %w", err)
	}
	if c.AdminAddr != "" {
		if err := checkAddr(c.AdminAddr, c.AllowInsecure || c.secure()); err != nil {
			return usageError("--admin-addr: %w", err)
		}
	}
	if n.listener, err = net.Listen("tcp", c.GrpcAddr); err != nil {
		return busy("--grpc-addr", err)
	}
	if c.AdminAddr == "" {
		return nil
	}
	if n.admin, err = net.Listen("tcp", c.AdminAddr); err != nil {
		return errors.Join(busy("--admin-addr", err), n.abandon())
	}
	return nil
}

// busy is the error of an address that cannot be listened on.
func busy(flag string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s: %w; choose another %s; or is idemd running there already?", flag, err, flag)
	}
	return fmt.Errorf("%s: %w", flag, err)
}

func (n *node) open(s *session, c *serveCmd, metrics *server.Metrics) (err error) {
	n.commits = &commits{metrics: metrics}
	if c.Store != nil {
		return n.openDatabase(s, c)
	}
	opts := pebblestore.Options{Logger: n.logger, Observer: n.commits, Fatal: s.storeStopped, MustExist: c.MustExist}
	if err := c.apply(&opts); err != nil {
		return err
	}
	embedded, err := pebblestore.Open(c.dataDir(), opts)
	if errors.Is(err, pebblestore.ErrLocked) {
		return fmt.Errorf("--data-dir %s: %w: another process has it open; stop it, or choose another directory", c.dataDir(), pebblestore.ErrLocked)
	}
	if errors.Is(err, pebblestore.ErrNoStore) {
		begin := s.command("recovery", "begin", "--data-dir", c.dataDir(), "--nothing-known", "--reason", "WHY")
		return fmt.Errorf("--data-dir %s: %w: mount it then. At the very first start leave --must-exist (IDEMD_MUST_EXIST) out. If the store is lost, restore a backup; without one: %s", c.dataDir(), err, begin)
	}
	if err != nil {
		return err
	}
	n.store, n.backup, n.made = embedded, backups(embedded, c.BackupRoot), embedded.Made()
	if c.DataDir != nil {
		n.notice = noticeNew(embedded)
	}
	return nil
}

func (n *node) openDatabase(s *session, c *serveCmd) error {
	db, err := c.openStore(s.ctx, sqlstore.Options{
		Logger: n.logger, Observer: n.commits, MaxConns: c.conns(), MustExist: c.MustExist,
		Alone: c.Topology == "", // a topology that did not name the region was refused
	})
	if err != nil {
		return err
	}
	n.store, n.made = db, db.Made()
	n.notice = server.JoinNotices(noticeOf(db), noticeNewRegion(db, c.Region))
	return nil
}

// storeStopped ends the process after a failed write or sync: what of the last commits is
// on disk is not known, and only opening the directory again tells. An error about damage
// says itself what to do.
func (s *session) storeStopped(err error) {
	next := "; start it again once the disk is well"
	if errors.Is(err, pebblestore.ErrDamaged) {
		next = ""
	}
	fmt.Fprintf(s.stderr, "idemd: the store has stopped and so does the process%s: %v\n", next, err)
	s.exit(exitFailed)
}

// abandon gives back what was taken before the server served.
func (n *node) abandon() error {
	err := n.listener.Close()
	if n.admin != nil {
		err = errors.Join(err, n.admin.Close())
	}
	err = errors.Join(err, n.leave())
	if n.store != nil {
		err = errors.Join(err, n.store.Close())
	}
	return err
}

// stop ends the server in order; the store is closed last. Calls that still run when ctx
// ends are cut off.
func (n *node) stop(ctx context.Context) error {
	return errors.Join(n.server.Shutdown(ctx), n.leave(), n.store.Close())
}

// newMetrics makes a registry with those of the process beside idemd's own.
func newMetrics() (*server.Metrics, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return server.NewMetrics(registry)
}

// commits is told of every commit of the store, and of what else stores tell.
type commits struct {
	metrics    *server.Metrics
	operations atomic.Int64
	syncs      atomic.Int64
}

// Committed implements [pebblestore.Observer] and [sqlstore.Observer].
func (c *commits) Committed(operations, bytes int, took time.Duration) {
	c.operations.Add(int64(operations))
	c.syncs.Add(1)
	c.metrics.ObserveCommit(operations, bytes, took)
}

// Damaged implements [pebblestore.Observer] and [sqlstore.Observer]. The store has logged it.
func (c *commits) Damaged(error) {}

// WallAhead implements [pebblestore.Observer] and [sqlstore.Observer].
func (c *commits) WallAhead(ahead time.Duration) { c.metrics.ObserveWall(ahead) }

// BucketsAhead implements [sqlstore.Observer].
func (c *commits) BucketsAhead(buckets int) { c.metrics.ObserveBucketsAhead(buckets) }
