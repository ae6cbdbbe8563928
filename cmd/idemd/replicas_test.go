package main

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore"
	"github.com/idemd/idemd/store/sqlstore/sqltest"
	"github.com/idemd/idemd/store/storetest"
)

// TestReplicasConform runs the whole suite over three servers that share a database, where
// each operation goes to another server than the one before, and random operations over two.
func TestReplicasConform(t *testing.T) {
	t.Parallel()
	t.Run("servers=2", func(t *testing.T) { storetest.RunRapid(t, storetest.Sample(t, 10, replicas(2))) })
	t.Run("servers=3", func(t *testing.T) {
		if testing.Short() {
			t.Skip("a minute of suite: 'make test' runs it")
		}
		storetest.Run(t, storetest.Sample(t, 10, replicas(3)))
	})
}

// replicas makes instances that are so many servers on one database.
func replicas(servers int) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		stores := sqltest.New(t, servers)
		instance := &storetest.Instance{Clock: stores.Clock, AttemptsHidden: true, Unplaced: true, RetentionLag: sqlstore.RetentionLag}
		var stop func()
		start := func() { instance.Backend, stop = serveReplicas(t, stores) }
		start()
		instance.Reopen = func() {
			stop()
			stores.Close()
			stores.Open()
			start()
		}
		t.Cleanup(func() { stop() })
		return instance
	}
}

// serveReplicas serves each store, and returns a backend that asks all of them in turn.
func serveReplicas(t testing.TB, stores *sqltest.Scripted) (backend *spread, stop func()) {
	var stops []func()
	var addrs []string
	for _, one := range stores.Stores {
		addr, stop := serveReplica(t, toldAtOnce{one, stores})
		addrs, stops = append(addrs, addr), append(stops, stop)
	}
	backend = newSpread(t, addrs...)
	backend.changed = stores.CatchUp
	backend.Maintainer = maintained{stores}
	return backend, func() {
		for _, c := range backend.clients {
			_ = c.Close() // nothing is in flight
		}
		for _, stop := range stops {
			stop()
		}
	}
}

// toldAtOnce is a store whose recoveries the others learn of at once: a server waits until they
// have, by the machine's clock, and the one that is tested by stands still.
type toldAtOnce struct {
	*sqlstore.Store
	all *sqltest.Scripted
}

// BeginRecovery implements [store.Recovery].
func (s toldAtOnce) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	begun, err := s.Store.BeginRecovery(ctx, req)
	s.all.CatchUp()
	begun.InForce = begun.Now
	return begun, err
}

func serveReplica(t testing.TB, backend store.Backend) (addr string, stop func()) {
	t.Helper()
	srv, err := server.New(server.Config{Backend: backend, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(listener) }()
	return listener.Addr().String(), func() {
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// maintained maintains the last store. The others learn of it, as they do by themselves.
type maintained struct{ *sqltest.Scripted }

// Buckets implements [store.Maintainer].
func (m maintained) Buckets(ctx context.Context) ([]store.Bucket, error) {
	return m.Stores[0].Buckets(ctx)
}

// Maintain implements [store.Maintainer].
func (m maintained) Maintain(ctx context.Context) (store.Maintenance, error) {
	defer m.CatchUp()
	return m.Stores[len(m.Stores)-1].Maintain(ctx)
}
