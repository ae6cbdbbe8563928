package server

import (
	"fmt"
	"net"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// BenchmarkSession is a repeat of a completed claim, by calls and in a session, with the
// processor time of client and server. One caller has nobody to share with.
func BenchmarkSession(b *testing.B) {
	memory, request := completedKey(b)
	full := newBenchServer(b, memory)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = full.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	calls, message := pb.NewIdempotencyServiceClient(conn), storepb.ClaimRequestToProto(request)
	shared, _ := bySession(b, conn)
	for _, callers := range []int{1, 64} {
		for _, way := range []struct {
			name string
			ask  func() error
		}{
			{"calls", func() error { return only(calls.Claim(b.Context(), message)) }},
			{"session", func() error { return only(shared.Claim(b.Context(), request)) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", way.name, callers), func(b *testing.B) {
				before := processorTime(b)
				b.SetParallelism(max(callers/2, 1))
				if callers == 1 {
					for b.Loop() {
						if err := way.ask(); err != nil {
							b.Fatal(err)
						}
					}
				} else {
					b.RunParallel(func(p *testing.PB) {
						for p.Next() {
							if err := way.ask(); err != nil {
								b.Error(err)
							}
						}
					})
				}
				b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1000, "cpu-µs/op")
			})
		}
	}
}

func processorTime(b *testing.B) int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
