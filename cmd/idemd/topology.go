package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/idemd/idemd/region"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore"
)

// topologyFlags say which regions there are.
type topologyFlags struct {
	Topology string   `placeholder:"FILE" help:"Serve one of several regions, --region: which ones there are and where keys live, in YAML."`
	StandIn  []string `placeholder:"NAME" help:"With --store and --topology: while that region's servers cannot be reached, serve its keys through the database, which all regions share. May be repeated."`
}

// checkTopology reads the topology, if there is one.
func (c *serveCmd) checkTopology() (*region.Topology, error) {
	switch {
	case len(c.StandIn) > 0 && (c.Store == nil || c.Topology == ""):
		return nil, usageError("--stand-in is for --store with --topology: only a database that regions share has another region's keys")
	case slices.Contains(c.StandIn, c.Region):
		return nil, usageError("--stand-in %s: that is this server's own region", c.Region)
	case c.Topology == "":
		return nil, nil
	}
	t, err := region.LoadTopology(c.Topology, c.Region)
	if err != nil {
		return nil, usageError("--topology: %w", err)
	}
	for _, name := range c.StandIn {
		if _, ok := t.Regions[name]; !ok {
			return nil, usageError("--stand-in %s: the topology names no such region", name)
		}
	}
	for name, place := range t.Regions {
		if _, err := identity.ParsePrincipal(place.Principal); err != nil && place.Principal != "" {
			return nil, usageError("--topology: region %s: %w", name, err)
		}
	}
	if c.TLSCert != "" && c.TLSClientCA == "" {
		return nil, usageError("--topology with TLS needs --tls-client-ca: regions know each other by certificates of its authorities")
	}
	return t, nil
}

// join makes the server one of a region, if there is a topology.
func (n *node) join(s *session, c *serveCmd, t *region.Topology, metrics *server.Metrics) error {
	if t == nil {
		return nil
	}
	if err := n.keepRegion(c); err != nil {
		return err
	}
	config := region.Config{
		Name: c.Region, Topology: t, Store: n.store, StandIns: map[string]store.Backend{},
		Caller: server.PrincipalOf, Observer: server.NewRegionMetrics(metrics), Logger: n.logger,
		Authorize: func(_ context.Context, caller, method, namespace string) error {
			return server.AuthorizeForwarded(n.identity, caller, method, namespace)
		},
	}
	if n.identity.Encrypts() {
		config.Credentials = n.identity.PeerCredentials
	}
	for _, name := range c.StandIn {
		flags := c.databaseFlags
		flags.Region = name
		db, err := flags.openStore(s.ctx, sqlstore.Options{Logger: n.logger, Observer: n.commits, MaxConns: c.conns()})
		if err != nil {
			return fmt.Errorf("--stand-in %s: %w", name, err)
		}
		n.standIns = append(n.standIns, db)
		config.StandIns[name] = db
	}
	joined, err := region.New(s.ctx, config)
	if err != nil {
		return fmt.Errorf("--topology %s: %w", c.Topology, err)
	}
	n.region, n.notice = joined, noticesOf(n.notice, joined.Notice)
	return nil
}

// fileRegion in the directory of an embedded store is whose it is.
const fileRegion = "REGION"

// keepRegion refuses to serve as one region what was served as another: both would be home to
// the same keys.
func (n *node) keepRegion(c *serveCmd) error {
	if c.Store != nil {
		return nil // the region is in the names of the tables
	}
	path := filepath.Join(c.dataDir(), fileRegion)
	text, err := os.ReadFile(path)
	switch of := strings.TrimSpace(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		return writeRegion(path, c.Region)
	case err != nil:
		return err
	case of != c.Region:
		return usageError("--region %s: the store in %s is that of region %q (file %s); name that region, or another directory", c.Region, c.dataDir(), of, fileRegion)
	}
	return nil
}

// writeRegion makes the file, whole and on disk or not at all.
func writeRegion(path, name string) error {
	f, err := os.CreateTemp(filepath.Dir(path), fileRegion+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it is gone, if all went well
	_, err = fmt.Fprintln(f, name)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// noticesOf joins what an operator should see to.
func noticesOf(of ...func() string) func() string {
	return func() string {
		var notices []string
		for _, notice := range of {
			if notice == nil {
				continue
			}
			if text := notice(); text != "" {
				notices = append(notices, text)
			}
		}
		return strings.Join(notices, "; ")
	}
}

// leave ends what the server has to do with other regions.
func (n *node) leave() error {
	if n.region != nil {
		n.region.Close()
	}
	var err error
	for _, db := range n.standIns {
		err = errors.Join(err, db.Close())
	}
	return err
}
