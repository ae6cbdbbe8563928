package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// reading returns the service with its requests read as calls reads them.
func (c *calls) reading(service grpc.ServiceDesc) *grpc.ServiceDesc {
	service.Methods = slices.Clone(service.Methods)
	for i := range service.Methods {
		method := &service.Methods[i]
		op, handler := operationOf(method.MethodName), method.Handler
		method.Handler = func(srv any, ctx context.Context, receive func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return handler(srv, ctx, func(m any) error { return c.read(ctx, op, m, receive) }, interceptor)
		}
	}
	service.Streams = slices.Clone(service.Streams)
	for i := range service.Streams {
		stream := service.Streams[i]
		service.Streams[i].Handler = func(srv any, ss grpc.ServerStream) error {
			return c.readStream(srv, ss, &stream)
		}
	}
	return &service
}

// readStream serves a stream. Its request is read as a call's is. One that its client goes on
// writing to would hold others up while nothing comes: of those a connection may have so many,
// and of each a message may be on its way.
func (c *calls) readStream(srv any, ss grpc.ServerStream, stream *grpc.StreamDesc) error {
	op := operationOf(stream.StreamName)
	if !stream.ClientStreams {
		return stream.Handler(srv, &requestStream{ss, c, op})
	}
	done, err := among(&connectionOf(ss.Context()).streams, maxSessions, "streams like this of the connection")
	if err != nil {
		return c.unread(ss.Context(), op, err)
	}
	defer done()
	return stream.Handler(srv, ss)
}

// requestStream is a stream that answers one request.
type requestStream struct {
	grpc.ServerStream
	calls *calls
	op    operation
}

// RecvMsg implements grpc.ServerStream.
func (s *requestStream) RecvMsg(m any) error {
	return s.calls.read(s.Context(), s.op, m, s.ServerStream.RecvMsg)
}

// read reads a request, of somebody who is known. A call that comes while as many of its connection are being read
// waits, and gRPC lets no more than a window's worth of it in. One that cannot be understood
// is refused as invalid; gRPC by itself would say INTERNAL, which asks for a repeat.
func (c *calls) read(ctx context.Context, op operation, m any, receive func(any) error) error {
	method, _ := grpc.Method(ctx)
	ctx, _, err := c.authenticate(ctx, method)
	if err != nil {
		return c.unread(ctx, op, err)
	}
	conn := connectionOf(ctx)
	if err := conn.enter(ctx); err != nil {
		return c.unread(ctx, op, err)
	}
	defer conn.leave()
	f := frame{message: m}
	if err := receive(&f); err != nil {
		return err // gRPC has answered
	}
	if f.err == nil {
		return nil
	}
	return c.unread(ctx, op, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the request is no %T: %v", m, f.err)))
}

// unread counts, logs and returns the refusal of a request that was not read.
func (c *calls) unread(ctx context.Context, op operation, err error) error {
	method, _ := grpc.Method(ctx)
	return c.notCarriedOut(ctx, op, nil, method, err)
}

// frame is a message to be read, and what was wrong with it.
type frame struct {
	message any
	err     error
}

// codec is gRPC's own, but for a frame it keeps the error: gRPC would answer it by itself.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	f.err = c.CodecV2.Unmarshal(data, f.message)
	return nil
}

// operationOf is the operation of a method; none of the operations if it has none.
func operationOf(method string) operation {
	return operation(slices.IndexFunc(operationNames[:], func(name string) bool {
		return strings.EqualFold(strings.ReplaceAll(name, "_", ""), method)
	}))
}

// unknownMethod answers calls of what is not served, with gRPC's code and a reason.
func unknownMethod(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return notServed(method).Err()
}

func notServed(method string) *status.Status {
	return unimplemented(fmt.Sprintf("%q is not served here", method))
}

func unimplemented(text string) *status.Status {
	plain := status.New(codes.Unimplemented, text)
	st, err := plain.WithDetails(&errdetails.ErrorInfo{
		Reason: storepb.ReasonName(pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT), Domain: storepb.Domain,
	})
	if err != nil {
		return plain
	}
	return st
}
