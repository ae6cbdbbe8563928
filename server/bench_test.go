package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
	"github.com/idemd/idemd/store/storetest"
)

// bare answers every Claim with the same message and does nothing else.
type bare struct {
	pb.UnimplementedIdempotencyServiceServer
	answer *pb.ClaimResponse
}

func (b *bare) Claim(context.Context, *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	return b.answer, nil
}

// completedKey returns a store with a completed key, and the Claim that is its repeat.
func completedKey(b *testing.B) (*storetest.Memory, store.ClaimRequest) {
	memory := newMemory()
	held, err := memory.Claim(b.Context(), store.ClaimRequest{Key: testKey, AttemptID: "first"})
	if err != nil {
		b.Fatal(err)
	}
	_, err = memory.Complete(b.Context(), store.CompleteRequest{
		Key: testKey, AttemptID: "first", Fence: held.Granted.Fence, Outcome: &store.Outcome{Body: make([]byte, 200), BodyType: "pay.v1.Receipt"},
	})
	if err != nil {
		b.Fatal(err)
	}
	return memory, store.ClaimRequest{Key: testKey, AttemptID: "a-second-attempt"}
}

func newBenchServer(b *testing.B, backend store.Backend) *Server {
	s, err := New(Config{Backend: backend, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	return s
}

// BenchmarkReplay is a repeat of a completed claim through the server, beside a bare gRPC
// server that answers with an equal message. On a machine that does other things the two
// differ by less than each varies: BenchmarkReplayWork measures the difference itself.
func BenchmarkReplay(b *testing.B) {
	ctx := b.Context()
	memory, request := completedKey(b)
	replayed, err := memory.Claim(ctx, request)
	if err != nil {
		b.Fatal(err)
	}
	bareServer := grpc.NewServer()
	b.Cleanup(bareServer.Stop)
	pb.RegisterIdempotencyServiceServer(bareServer, &bare{answer: storepb.ClaimAnswerToProto(replayed)})
	full := newBenchServer(b, memory)

	message := storepb.ClaimRequestToProto(request)
	for _, s := range []struct {
		name  string
		serve func(net.Listener) error
	}{{"bare", bareServer.Serve}, {"idemd", full.Serve}} {
		keys := benchClient(b, s.serve)
		call := func(b *testing.B) {
			if _, err := keys.Claim(ctx, message); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(s.name+"/1 caller", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				call(b)
			}
		})
		b.Run(s.name+"/64 callers", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					call(b)
				}
			})
		})
	}
}

// BenchmarkReplayWork is all that the server does for a repeat beyond what gRPC does: from
// the message read to the message to write, the store in memory included.
func BenchmarkReplayWork(b *testing.B) {
	memory, request := completedKey(b)
	s := newBenchServer(b, memory)
	c := s.calls
	service := s.keyService()
	info := &grpc.UnaryServerInfo{FullMethod: pb.IdempotencyService_Claim_FullMethodName}
	handler := func(ctx context.Context, req any) (any, error) { return service.Claim(ctx, req.(*pb.ClaimRequest)) }
	message := storepb.ClaimRequestToProto(request)
	b.ReportAllocs()
	for b.Loop() {
		ctx, _ := received(b.Context(), nil)
		if _, err := c.unary(ctx, message, info, handler); err != nil {
			b.Fatal(err)
		}
	}
}

func benchClient(b *testing.B, serve func(net.Listener) error) pb.IdempotencyServiceClient {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return pb.NewIdempotencyServiceClient(conn)
}

// BenchmarkCount is what counting one answer costs.
func BenchmarkCount(b *testing.B) {
	r := newRig(b, newMemory())
	answer := store.ClaimAnswer{Completed: &store.Completed{Age: 1e9, Retention: 1e12}}
	b.ReportAllocs()
	for b.Loop() {
		r.config.Metrics.claimed(store.DefaultNamespace, answer, nil)
	}
}
