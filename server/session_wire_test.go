package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore/pebbletest"
	"github.com/idemd/idemd/store/storetest"
)

// countedConn is a connection that counts the calls of what could go by a session.
type countedConn struct {
	grpc.ClientConnInterface
	calls atomic.Int64
}

func (c *countedConn) Invoke(ctx context.Context, method string, m, reply any, opts ...grpc.CallOption) error {
	claim, _ := m.(*pb.ClaimRequest)
	if strings.HasPrefix(method, "/idemd.v1.IdempotencyService/") && claim.GetWait() == nil && proto.Size(m.(proto.Message)) < 16<<10 {
		c.calls.Add(1)
	}
	return c.ClientConnInterface.Invoke(ctx, method, m, reply, opts...)
}

// bySession returns a client whose session is open, and its connection. It is for tests
// without a bubble.
func bySession(t testing.TB, conn grpc.ClientConnInterface) (*client.Client, *countedConn) {
	t.Helper()
	counted := &countedConn{ClientConnInterface: conn}
	c := client.New(counted)
	t.Cleanup(func() { _ = c.Close() }) // never fails
	for opened := false; !opened; {
		before := counted.calls.Load()
		_, _ = c.Lookup(context.Background(), store.LookupRequest{Key: store.Key{Namespace: "default", ID: "is it open?"}}) // not found
		opened = counted.calls.Load() == before
	}
	counted.calls.Store(0)
	return c, counted
}

// overASession is overTheWire, by a session.
func overASession(inner storetest.Factory) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		local := inner(t)
		var all []*countedConn
		serve := func() (*rig, store.Backend) {
			r := newRig(t, local.Backend)
			c, b := bySession(t, r.connect())
			all = append(all, b)
			return r, wire{Client: c, local: local.Backend}
		}
		r, backend := serve()
		served := &storetest.Instance{Backend: backend, Clock: local.Clock, AttemptsHidden: true, Unplaced: true}
		if local.Reopen != nil {
			served.Reopen = func() {
				r.close()
				local.Reopen()
				r, served.Backend = serve()
			}
		}
		t.Cleanup(func() {
			for _, b := range all {
				if n := b.calls.Load(); n > 0 {
					t.Errorf("%d operations were calls", n)
				}
			}
		})
		return served
	}
}

func TestConformanceOverASession(t *testing.T) {
	storetest.Run(t, storetest.Brief(t, 5, overASession(storetest.MemoryFactory)))
}

func TestConformanceOverASessionOnTheEmbeddedStore(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it asks one thing after the other, for long; 'make test' plays it")
	}
	storetest.Run(t, overASession(pebbletest.Factory))
}
