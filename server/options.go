package server

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	// maxReceiveBytes is above the largest outcome, so that a moderately oversized one is
	// refused with a reason and not by gRPC.
	maxReceiveBytes = 1 << 20
	// maxReading is how many requests of one connection are read at once. Of what is not
	// being read a connection may have sent streamWindow bytes for each call.
	maxReading       = 32
	streamWindow     = 64 << 10
	connectionWindow = 1 << 20
	// farStreamWindow and farConnectionWindow are those where there are regions: on a long way
	// each window that is full costs a round trip. The largest outcome fits, with what is around
	// it. What is read of a stranger is bounded by strangerBytes all the same.
	farStreamWindow     = 288 << 10
	farConnectionWindow = 16 << 20
	// maxHeaderBytes bounds the metadata of a call; tracing and baggage fit.
	maxHeaderBytes = 16 << 10
	// maxStreams is how many calls one connection may have in flight, waiting ones included.
	maxStreams = 10_000
	// streamWorkers is how many goroutines, with grown stacks, serve calls; more calls at
	// once get goroutines of their own.
	streamWorkers = 512
	// connectionTimeout is how long a new connection has for its handshake.
	connectionTimeout = 5 * time.Second
)

// limits are the options of the gRPC server. A dead peer is noticed within keepalive's
// Time + Timeout, so that its waiting claims do not stay for their whole wait.
func limits(regions bool) []grpc.ServerOption {
	stream, connection := int32(streamWindow), int32(connectionWindow)
	if regions {
		stream, connection = farStreamWindow, farConnectionWindow
	}
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxReceiveBytes),
		grpc.StaticStreamWindowSize(stream), // gRPC would let them grow
		grpc.StaticConnWindowSize(connection),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 30 * time.Minute,
			Time:              time.Minute,
			Timeout:           20 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             10 * time.Second,
			PermitWithoutStream: true,
		}),
	}
}
