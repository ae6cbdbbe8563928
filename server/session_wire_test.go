package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore/pebbletest"
	"github.com/idemd/idemd/store/storetest"
)

// busy is a connection that keeps one call in flight, so that what its client asks for
// beside goes by a session. It counts what does not, although it could.
type busy struct {
	grpc.ClientConnInterface
	kept  chan struct{} // closed when the call is in flight
	calls atomic.Int64
}

const keptID = "the call that keeps the connection busy"

func (b *busy) Invoke(ctx context.Context, method string, m, reply any, opts ...grpc.CallOption) error {
	if keyOf(m).ID == keptID {
		close(b.kept)
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	claim, _ := m.(*pb.ClaimRequest)
	if strings.HasPrefix(method, "/idemd.v1.IdempotencyService/") && claim.GetWait() == nil && proto.Size(m.(proto.Message)) < 16<<10 {
		b.calls.Add(1)
	}
	return b.ClientConnInterface.Invoke(ctx, method, m, reply, opts...)
}

// bySession returns a client whose operations go by a session, and its connection. It is
// for a test that has no bubble, or awaits in it that the session is open.
func (r *rig) bySession(conn grpc.ClientConnInterface) (*client.Client, *busy) {
	r.Helper()
	b := &busy{ClientConnInterface: conn, kept: make(chan struct{})}
	c := client.New(b)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.Lookup(ctx, store.LookupRequest{Key: store.Key{Namespace: "default", ID: keptID}}) // ends with ctx
	}()
	r.Cleanup(func() {
		cancel()
		<-ended
		_ = c.Close() // never fails
	})
	<-b.kept
	for opened := false; !opened; {
		before := b.calls.Load()
		_, _ = c.Lookup(ctx, store.LookupRequest{Key: store.Key{Namespace: "default", ID: "is it open?"}}) // not found
		opened = b.calls.Load() == before
	}
	b.calls.Store(0)
	return c, b
}

// overASession is overTheWire, by a session.
func overASession(inner storetest.Factory) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		local := inner(t)
		var all []*busy
		serve := func() (*rig, store.Backend) {
			r := newRig(t, local.Backend)
			c, b := r.bySession(r.connect())
			all = append(all, b)
			return r, wire{c, local.Backend}
		}
		r, backend := serve()
		served := &storetest.Instance{Backend: backend, Clock: local.Clock, AttemptsHidden: true}
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
	storetest.Run(t, overASession(storetest.MemoryFactory))
}

func TestConformanceOverASessionOnTheEmbeddedStore(t *testing.T) {
	storetest.Run(t, overASession(pebbletest.Factory))
}
