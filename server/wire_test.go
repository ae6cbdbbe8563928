package server

import (
	"context"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore/pebbletest"
	"github.com/idemd/idemd/store/storetest"
)

// wire is a backend that is reached over gRPC, but for Maintain, which has no call. Placements
// and Members have none either, and are not asked for.
type wire struct {
	*client.Client
	store.Placements
	store.Members
	local store.Maintainer
}

// Maintain implements [store.Maintainer].
func (w wire) Maintain(ctx context.Context) (store.Maintenance, error) { return w.local.Maintain(ctx) }

// overTheWire makes instances that are served, and asked through a client.
func overTheWire(inner storetest.Factory) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		local := inner(t)
		r := newRig(t, local.Backend)
		served := &storetest.Instance{Backend: wire{Client: r.client(), local: local.Backend}, Clock: local.Clock, AttemptsHidden: true, Unplaced: true}
		if local.Reopen != nil {
			served.Reopen = func() {
				r.close()
				local.Reopen()
				r = newRig(t, local.Backend)
				served.Backend = wire{Client: r.client(), local: local.Backend}
			}
		}
		return served
	}
}

func TestConformanceOverTheWire(t *testing.T) {
	storetest.Run(t, storetest.Brief(t, 5, overTheWire(storetest.MemoryFactory)))
}

func TestConformanceOverTheWireOnTheEmbeddedStore(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it asks one thing after the other, for long; 'make test' plays it")
	}
	storetest.Run(t, overTheWire(pebbletest.Factory))
}
