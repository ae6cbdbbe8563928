package server

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server that serves on a pipe in memory, and what it wrote to its log.
type rig struct {
	testing.TB
	*Server
	registry *prometheus.Registry
	log      *logBuffer
	lis      *bufconn.Listener
	served   chan error

	mu    sync.Mutex
	conns []*grpc.ClientConn
}

// newRig starts a server over the backend. The test's end shuts it down.
func newRig(t testing.TB, backend store.Backend) *rig {
	t.Helper()
	return newRigOf(t, Config{Backend: backend})
}

// newRigOf starts a server of a configuration that lacks a logger and metrics, after what there
// is to prepare.
func newRigOf(t testing.TB, config Config, prepare ...func(*Server)) *rig {
	t.Helper()
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	log := &logBuffer{}
	config.Metrics = metrics
	config.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, prepare := range prepare {
		prepare(s)
	}
	r := &rig{TB: t, Server: s, registry: registry, log: log, lis: bufconn.Listen(1 << 20), served: make(chan error, 1)}
	go func() { r.served <- s.Serve(r.lis) }()
	t.Cleanup(r.close)
	return r
}

// close ends the connections and the server; a second one does nothing.
func (r *rig) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close() // nothing is in flight
	}
	r.conns = nil
	_ = r.Shutdown(context.Background()) // a test that shut it down has looked at the error
	if r.served != nil {
		if err := <-r.served; err != nil {
			r.Errorf("Serve returned %v", err)
		}
		r.served = nil
	}
}

// connect returns a new connection to the server.
func (r *rig) connect() *grpc.ClientConn {
	r.Helper()
	conn := dialPipe(r, r.lis)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, conn)
	return conn
}

func dialPipe(t testing.TB, lis *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///pipe",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// client returns a client on a connection of its own.
func (r *rig) client() *client.Client { return client.New(r.connect()) }

// logBuffer is what a logger wrote.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

var testKey = store.Key{Namespace: store.DefaultNamespace, Scope: "/pay.v1.Pay/Charge", ID: "order-1", Entity: "acct-7"}

func newMemory() *storetest.Memory { return storetest.NewMemory(storetest.NewClock()) }

// hooked is a backend that does something before each of the five operations and before
// what health asks: it may note, block, panic, or answer with an error instead.
type hooked struct {
	store.Backend
	before func(ctx context.Context, op operation) error
}

func (h *hooked) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	if err := h.before(ctx, opClaim); err != nil {
		return store.ClaimAnswer{}, err
	}
	return h.Backend.Claim(ctx, req)
}

func (h *hooked) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	if err := h.before(ctx, opRenew); err != nil {
		return store.RenewAnswer{}, err
	}
	return h.Backend.Renew(ctx, req)
}

func (h *hooked) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if err := h.before(ctx, opComplete); err != nil {
		return store.CompleteAnswer{}, err
	}
	return h.Backend.Complete(ctx, req)
}

func (h *hooked) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	if err := h.before(ctx, opRelease); err != nil {
		return store.ReleaseAnswer{}, err
	}
	return h.Backend.Release(ctx, req)
}

func (h *hooked) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	if err := h.before(ctx, opLookup); err != nil {
		return store.LookupAnswer{}, err
	}
	return h.Backend.Lookup(ctx, req)
}

func (h *hooked) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	if err := h.before(ctx, opGetNamespace); err != nil {
		return store.Namespace{}, err
	}
	return h.Backend.GetNamespace(ctx, name)
}

// everyOperation sends one valid request of each of the five operations and returns the
// errors.
func everyOperation(ctx context.Context, s store.Store) map[operation]error {
	errs := map[operation]error{}
	_, errs[opClaim] = s.Claim(ctx, store.ClaimRequest{Key: testKey, AttemptID: "a"})
	_, errs[opRenew] = s.Renew(ctx, store.RenewRequest{Key: testKey, AttemptID: "a", Fence: 1})
	_, errs[opComplete] = s.Complete(ctx, store.CompleteRequest{Key: testKey, AttemptID: "a", Fence: 1, Outcome: &store.Outcome{}})
	_, errs[opRelease] = s.Release(ctx, store.ReleaseRequest{Key: testKey, AttemptID: "a", Fence: 1, Effect: store.EffectNone})
	_, errs[opLookup] = s.Lookup(ctx, store.LookupRequest{Key: testKey})
	return errs
}

// grant claims the key and returns its fence.
func grant(t testing.TB, s store.Store, key store.Key, attempt string) int64 {
	t.Helper()
	answer, err := s.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: attempt})
	if err != nil || answer.Granted == nil {
		t.Fatalf("Claim by %q: %+v, %v", attempt, answer, err)
	}
	return answer.Granted.Fence
}
