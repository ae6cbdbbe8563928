package server

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// wire is a backend that is reached over gRPC, but for Maintain, which has no call.
type wire struct {
	*client.Client
	local store.Maintainer
}

// Maintain implements [store.Maintainer].
func (w wire) Maintain(ctx context.Context) (store.Maintenance, error) { return w.local.Maintain(ctx) }

// overTheWire makes instances that are served, and asked through a client.
func overTheWire(inner storetest.Factory) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		local := inner(t)
		r := newRig(t, local.Backend)
		served := &storetest.Instance{Backend: wire{r.client(), local.Backend}, Clock: local.Clock, AttemptsHidden: true}
		if local.Reopen != nil {
			served.Reopen = func() {
				r.close()
				local.Reopen()
				r = newRig(t, local.Backend)
				served.Backend = wire{r.client(), local.Backend}
			}
		}
		return served
	}
}

// pebbleFactory makes embedded stores in memory.
func pebbleFactory(t testing.TB) *storetest.Instance {
	fs, clock := vfs.NewCrashableMem(), storetest.NewClock()
	open := func() *pebblestore.Store {
		s, err := pebblestore.Open("data", pebblestore.Options{
			FS: fs, Source: clock, MemTableBytes: 1 << 20, MaintainEvery: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	instance := &storetest.Instance{Backend: s, Clock: clock}
	instance.Reopen = func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open()
		instance.Backend = s
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return instance
}

func TestConformanceOverTheWire(t *testing.T) {
	storetest.Run(t, overTheWire(storetest.MemoryFactory))
}

func TestConformanceOverTheWireOnTheEmbeddedStore(t *testing.T) {
	storetest.Run(t, overTheWire(pebbleFactory))
}
