package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// bytesOnly sends bytes as they are.
type bytesOnly struct{}

func (bytesOnly) Name() string { return "proto" }

func (bytesOnly) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesOnly) Unmarshal(mem.BufferSlice, any) error { return nil }

// send calls a method with bytes for a request.
func send(ctx context.Context, conn *grpc.ClientConn, method string, request []byte) error {
	return conn.Invoke(ctx, method, request, &emptypb.Empty{}, grpc.ForceCodecV2(bytesOnly{}))
}

// What is not a message is the caller's fault, and sending it again does not help.
func TestRequestsThatCannotBeRead(t *testing.T) {
	r := newRig(t, untouchable{newMemory(), t})
	conn := r.connect()
	methods := 0
	for _, service := range []grpc.ServiceDesc{pb.IdempotencyService_ServiceDesc, pb.AdminService_ServiceDesc} {
		for _, m := range service.Methods {
			methods++
			method := "/" + service.ServiceName + "/" + m.MethodName
			err := send(t.Context(), conn, method, []byte{0x0a, 0x7f, 's', '3', 'c', 'r', 'e', 't'}) // field 1 has 127 bytes
			if code, reason := reasonIn(err); code != codes.InvalidArgument || reason != "INVALID_ARGUMENT" || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v (reason %q)", method, err, reason)
			}
			if op := operationOf(m.MethodName); op < operations {
				label := "answer=INVALID_ARGUMENT,namespace=_unknown,operation=" + op.String()
				if got := r.samples("idemd_answers_total")[label]; got != 1 {
					t.Errorf("%s is counted %v times", label, got)
				}
			}
			if !strings.Contains(r.log.String(), "method="+method) {
				t.Errorf("%s is not in the log", method)
			}
		}
	}
	if methods < 14 {
		t.Errorf("only %d methods", methods)
	}
	key := append([]byte{0x0a, 0x03, 0x1a, 0x01}, 0xff) // a key whose id is not UTF-8
	err := send(t.Context(), conn, pb.IdempotencyService_Claim_FullMethodName, key)
	if code, reason := reasonIn(err); code != codes.InvalidArgument || reason != "INVALID_ARGUMENT" || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("an id that is not UTF-8: %v (reason %q)", err, reason)
	}
	if !errors.Is(storepb.FromStatus(err), store.ErrInvalidArgument) {
		t.Errorf("a client takes it for %v", storepb.FromStatus(err))
	}
}

func TestUnknownMethodsHaveAReason(t *testing.T) {
	conn := newRig(t, newMemory()).connect()
	for _, method := range []string{"/idemd.v1.IdempotencyService/Steal", "/idemd.v2.IdempotencyService/Claim", "/x/y"} {
		err := send(t.Context(), conn, method, nil)
		if code, reason := reasonIn(err); code != codes.Unimplemented || reason != "INVALID_ARGUMENT" || !strings.Contains(err.Error(), method) {
			t.Errorf("%s: %v (reason %q)", method, err, reason)
		}
		if !errors.Is(storepb.FromStatus(err), store.ErrInvalidArgument) {
			t.Errorf("a client takes it for %v", storepb.FromStatus(err))
		}
	}
}

// What gRPC answers before the server sees it has no reason; README.md lists it.
func TestWhatGRPCAnswersByItself(t *testing.T) {
	conn, ctx := newRig(t, untouchable{newMemory(), t}).connect(), t.Context()
	const method = pb.IdempotencyService_Complete_FullMethodName
	brokenOff := func() error {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		return stream.RecvMsg(&emptypb.Empty{})
	}
	for _, c := range []struct {
		name string
		err  error
		want codes.Code
	}{
		{"far too large", send(ctx, conn, method, make([]byte, maxReceiveBytes+1)), codes.ResourceExhausted},
		{"broken off", brokenOff(), codes.Internal},
	} {
		if code, reason := reasonIn(c.err); code != c.want || reason != "" {
			t.Errorf("%s: %v (reason %q), want %v", c.name, c.err, reason, c.want)
		}
	}
}

// slowConn is an HTTP/2 connection whose calls begin to send a request and do not end it. It
// counts how many bytes the server would take of them.
type slowConn struct {
	testing.TB
	framer  *http2.Framer
	allowed atomic.Int64
	next    uint32
}

func newSlowConn(t testing.TB, conn net.Conn) *slowConn {
	t.Helper()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c := &slowConn{TB: t, framer: http2.NewFramer(conn, conn), next: 1}
	c.must(c.framer.WriteSettings())
	go c.listen()
	return c
}

func (c *slowConn) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// listen reads until the connection ends. Nothing else is written while the server speaks.
func (c *slowConn) listen() {
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		if update, ok := frame.(*http2.WindowUpdateFrame); ok && update.StreamID != 0 {
			c.allowed.Add(int64(update.Increment))
		}
	}
}

// begin begins a call whose request has so many bytes, and returns its stream.
func (c *slowConn) begin(size uint32) uint32 {
	c.Helper()
	var block bytes.Buffer
	headers := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", pb.IdempotencyService_Complete_FullMethodName},
		{":authority", "idemd"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		c.must(headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	stream := c.next
	c.next += 2
	c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
	c.must(c.framer.WriteData(stream, false, binary.BigEndian.AppendUint32([]byte{0}, size)))
	c.allowed.Add(http2InitialWindow)
	return stream
}

const http2InitialWindow = 1<<16 - 1

// Calls with large requests take a bounded amount of memory, however many there are: what
// a connection may send is bounded, and so is what is read of it at once. Those that are read
// make room for others.
func TestBytesInFlightAreBounded(t *testing.T) {
	const calls = 500
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemory())
		defer r.close()
		pipe, err := r.lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer pipe.Close()
		c := newSlowConn(t, pipe)
		var streams []uint32
		for range calls {
			streams = append(streams, c.begin(maxReceiveBytes))
		}
		synctest.Wait()
		t.Logf("%d calls of %d bytes may send %d", calls, maxReceiveBytes, c.allowed.Load())
		if got, most := c.allowed.Load(), int64(calls*streamWindow+maxReading*maxReceiveBytes); got > most {
			t.Errorf("%d calls may send %d bytes, want at most %d", calls, got, most)
		}

		// A connection of somebody else's is not held up, and neither is this one once its
		// calls end.
		grant(t, r.client(), testKey, "a")
		before := c.allowed.Load()
		for _, stream := range streams {
			c.must(c.framer.WriteRSTStream(stream, http2.ErrCodeCancel))
		}
		c.begin(maxReceiveBytes)
		synctest.Wait()
		if got := c.allowed.Load() - before; got < maxReceiveBytes {
			t.Errorf("after the others have ended, a call may send only %d bytes", got)
		}
	})
}

// Requests that do not arrive hold others of their connection up, but not for ever.
func TestStuckRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemory())
		defer r.close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		conn := r.connect()
		for range maxReading {
			if _, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, pb.IdempotencyService_Complete_FullMethodName); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		start := time.Now()
		_, err := pb.NewIdempotencyServiceClient(conn).Claim(t.Context(), &pb.ClaimRequest{Key: &pb.Key{Namespace: "default", Id: "k"}, AttemptId: []byte("a")})
		var refused *store.Error
		if !errors.As(storepb.FromStatus(err), &refused) || refused.Sentinel != store.ErrOverloaded || refused.RetryAfter <= 0 {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != maxStoreTime {
			t.Errorf("answered after %v", took)
		}
		if got := r.samples("idemd_answers_total")["answer=OVERLOADED,namespace=_unknown,operation=claim"]; got != 1 {
			t.Errorf("counted %v times", got)
		}
		cancel() // those that are stuck
		synctest.Wait()
		grant(t, client.New(conn), testKey, "a")
	})
}

// Whatever is registered, its requests are read as calls reads them: of one connection only so
// many are read at once, and those that wait for it do not wait for ever. A stream that its client
// goes on writing to cannot be told to wait: there are only so many of them.
func TestEveryMethodIsBehindTheGate(t *testing.T) {
	methods := servedBy(t)
	if len(methods) < 35 {
		t.Errorf("only %d methods", len(methods))
	}
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRigOf(t, Config{Backend: newMemory()}, servePeers)
				defer r.close()
				conn := r.connect()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var refused atomic.Int32
				for range maxReading + 10 {
					stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
					if err != nil {
						t.Fatal(err)
					}
					go func() {
						if _, reason := reasonIn(stream.RecvMsg(&emptypb.Empty{})); reason == "OVERLOADED" {
							refused.Add(1)
						}
					}()
				}
				time.Sleep(maxStoreTime)
				synctest.Wait()
				if got := refused.Load(); got < 10 {
					t.Errorf("of %d requests that do not arrive, only %d were refused", maxReading+10, got)
				}
			})
		})
	}
}

// servedBy are the methods of a server that has all services.
func servedBy(t *testing.T) []string {
	r := newRigOf(t, Config{Backend: newMemory()}, servePeers)
	grant(t, r.client(), testKey, "a") // it serves
	return slices.Sorted(maps.Keys(servedMethods(r.grpc)))
}
