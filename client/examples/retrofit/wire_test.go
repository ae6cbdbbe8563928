package retrofit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// raw is a message as it is on the wire, so that what is compared are bytes.
type raw []byte

func (r raw) String() string { return fmt.Sprintf("%q", string(r)) }

// rawCodec sends and receives a *raw as it is.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*raw), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*raw) = append(raw{}, data...)
	return nil
}

// hello is a HelloRequest or a HelloReply: a message whose field 1 is a short text.
func hello(text string) raw {
	return append(raw{0x0a, byte(len(text))}, text...)
}

// everywhere is a Rectangle from the Point -9e8, -18e8 to the Point 9e8, 18e8.
func everywhere() raw {
	point := func(latitude, longitude int64) raw {
		return append(varint(raw{0x08}, latitude), varint(raw{0x10}, longitude)...)
	}
	lo, hi := point(-900_000_000, -1_800_000_000), point(900_000_000, 1_800_000_000)
	message := append(raw{0x0a, byte(len(lo))}, lo...)
	return append(append(message, 0x12, byte(len(hi))), hi...)
}

func varint(to raw, n int64) raw {
	return binary.AppendUvarint(to, uint64(n))
}

// count counts the messages of a stream.
func count(t *testing.T, stream grpc.ClientStream) int {
	t.Helper()
	for n := 0; ; n++ {
		var message raw
		err := stream.RecvMsg(&message)
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// startIdemd serves a store in memory and returns its address.
func startIdemd(t *testing.T) (addr string) {
	t.Helper()
	s, err := server.New(server.Config{Backend: storetest.NewMemory(store.SystemClock{}), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}
