package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	for name, place := range t.Regions {
		if c.TLSCert != "" && name != c.Region && place.Principal == "" {
			return nil, usageError("--topology: region %s has no principal, and so any region's certificate would speak for it: "+
				"write whom its servers' certificates name, as principal: \"spiffe://…\"", name)
		}
	}
	return t, nil
}

// join makes the server one of a region, if there is a topology.
func (n *node) join(s *session, c *serveCmd, t *region.Topology, metrics *server.Metrics) error {
	if t == nil {
		return n.isAlone(s.ctx)
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
	if errors.Is(err, region.ErrOtherRegion) {
		return usageError("--region %s: %w", c.Region, err)
	}
	if err != nil {
		return fmt.Errorf("--topology %s: %w", c.Topology, err)
	}
	n.region, n.noticeForAll, n.notice = joined, server.JoinNotices(n.notice, joined.NoticeForAll), server.JoinNotices(n.notice, joined.Notice)
	return nil
}

// isAlone refuses to serve without a topology what belongs to a region: the other regions would
// not know what is done to its keys.
func (n *node) isAlone(ctx context.Context) error {
	m, err := n.store.Membership(ctx)
	if err == nil && m.Region != "" {
		err = usageError("the store is that of region %q: serve it with --region %s and --topology", m.Region, m.Region)
	}
	return err
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
