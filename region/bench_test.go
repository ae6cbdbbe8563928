package region

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
	"github.com/idemd/idemd/store/storetest"
)

// bareChain answers Lookup at once, or asks the next server first: what any two calls cost.
type bareChain struct {
	pb.UnimplementedIdempotencyServiceServer
	next pb.IdempotencyServiceClient
}

func (c *bareChain) Lookup(ctx context.Context, m *pb.LookupRequest) (*pb.LookupResponse, error) {
	if c.next != nil {
		return c.next.Lookup(ctx, &pb.LookupRequest{Key: m.GetKey()})
	}
	return &pb.LookupResponse{State: pb.State_STATE_COMPLETED, Fence: 1}, nil
}

// overStore is the least that a server does over a store.
type overStore struct {
	pb.UnimplementedIdempotencyServiceServer
	store store.Store
}

func (s *overStore) Lookup(ctx context.Context, m *pb.LookupRequest) (*pb.LookupResponse, error) {
	req, err := storepb.LookupRequestFromProto(m)
	if err != nil {
		return nil, err
	}
	answer, err := s.store.Lookup(ctx, req)
	if err != nil {
		return nil, err
	}
	return storepb.LookupAnswerToProto(answer), nil
}

func (s *overStore) Claim(ctx context.Context, m *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	req, err := storepb.ClaimRequestFromProto(m)
	if err != nil {
		return nil, err
	}
	answer, err := s.store.Claim(ctx, req)
	if err != nil {
		return nil, err
	}
	return storepb.ClaimAnswerToProto(answer), nil
}

// BenchmarkForward compares an operation that is sent on to its home, whose store answers at
// once, with a chain of two calls that do nothing. All servers are in this process and speak
// over loopback TCP.
func BenchmarkForward(b *testing.B) {
	chain := serveBench(b, func(s *grpc.Server) {
		last := serveBench(b, func(s *grpc.Server) { pb.RegisterIdempotencyServiceServer(s, &bareChain{}) })
		pb.RegisterIdempotencyServiceServer(s, &bareChain{next: last})
	})
	forwarding := forwardingServer(b)
	key := &pb.Key{Namespace: "default", Id: "order-1001", Scope: "/pay.v1.Pay/Charge", Entity: "acct-7"}
	lookup := func(c pb.IdempotencyServiceClient) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Lookup(ctx, &pb.LookupRequest{Key: key})
			return err
		}
	}
	claim := func(ctx context.Context) error {
		_, err := forwarding.Claim(ctx, &pb.ClaimRequest{Key: key, AttemptId: []byte("repeat")})
		return err
	}
	for _, callers := range []int{1, 64} {
		for _, what := range []struct {
			name string
			call func(context.Context) error
		}{{"bare", lookup(chain)}, {"lookup", lookup(forwarding)}, {"repeat", claim}} {
			b.Run(fmt.Sprintf("%s/callers=%d", what.name, callers), func(b *testing.B) { benchCalls(b, callers, what.call) })
		}
	}
}

func benchCalls(b *testing.B, callers int, call func(context.Context) error) {
	b.ReportAllocs()
	work := make(chan struct{})
	done := make(chan error, callers)
	for range callers {
		go func() {
			var failed error
			for range work {
				if err := call(context.Background()); err != nil {
					failed = err
				}
			}
			done <- failed
		}()
	}
	before := cpuTime(b)
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	for range callers {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// cpuTime is what this process has used, which other processes on the machine falsify less than
// they do the time that passes.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func serveBench(b *testing.B, register func(*grpc.Server)) pb.IdempotencyServiceClient {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := grpc.NewServer(grpc.NumStreamWorkers(64))
	register(s)
	go func() { _ = s.Serve(lis) }() // until Stop
	b.Cleanup(s.Stop)
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return pb.NewIdempotencyServiceClient(conn)
}

// forwardingServer is eu's, over us whose store is in memory and has the completed key.
func forwardingServer(b *testing.B) pb.IdempotencyServiceClient {
	memory := storetest.NewMemory(storetest.NewClock())
	key := store.Key{Namespace: "default", ID: "order-1001", Scope: "/pay.v1.Pay/Charge", Entity: "acct-7"}
	granted, err := memory.Claim(b.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
	if err != nil {
		b.Fatal(err)
	}
	_, err = memory.Complete(b.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: granted.Granted.Fence, Outcome: &store.Outcome{Body: make([]byte, 200)}})
	if err != nil {
		b.Fatal(err)
	}
	listeners := map[string]net.Listener{}
	for _, name := range []string{"eu", "us"} {
		if listeners[name], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			b.Fatal(err)
		}
	}
	text := fmt.Sprintf("regions: {eu: {address: %q}, us: {address: %q}}\nplacements: {default: fixed us}", listeners["eu"].Addr(), listeners["us"].Addr())
	stores := map[string]store.Backend{"eu": storetest.NewMemory(storetest.NewClock()), "us": memory}
	regions := map[string]*Region{}
	for name, lis := range listeners {
		topology, err := ParseTopology([]byte(text), name)
		if err != nil {
			b.Fatal(err)
		}
		r, err := New(b.Context(), Config{Name: name, Topology: topology, Store: stores[name], Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		s := grpc.NewServer(grpc.NumStreamWorkers(64))
		r.Register(s, stores[name])
		go func() { _ = s.Serve(lis) }() // until Stop
		b.Cleanup(func() { s.Stop(); r.Close() })
		regions[name] = r
	}
	for regions["eu"].peers["us"].current.Load() == nil || regions["eu"].settle(b.Context()) != nil {
	}
	return serveBench(b, func(s *grpc.Server) {
		pb.RegisterIdempotencyServiceServer(s, &overStore{store: regions["eu"].Over(stores["eu"])})
	})
}
