package retrofit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
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
