package pgfault

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// message is one of either side's after the start, as it is on the wire: forwarded as it came.
type message struct {
	kind byte
	body []byte
}

// encoder is a message, of pgproto3's or as it came.
type encoder interface {
	Encode(dst []byte) ([]byte, error)
}

func (m message) Encode(dst []byte) ([]byte, error) {
	dst = append(dst, m.kind)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(m.body)+4))
	return append(dst, m.body...), nil
}

// readAll passes on messages until the stream ends or nobody takes them any longer. The channel is closed then.
func readAll(r io.Reader, to chan<- message, over <-chan struct{}) {
	defer close(to)
	buffered := bufio.NewReader(r)
	for {
		m, err := readMessage(buffered)
		if err != nil {
			return // however a side goes away, the session is over
		}
		select {
		case to <- m:
		case <-over:
			return
		}
	}
}

func readMessage(r io.Reader) (message, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return message{}, err
	}
	body, err := readBody(r, header[1:])
	return message{kind: header[0], body: body}, err
}

// readBody reads what follows a length, which counts itself.
func readBody(r io.Reader, length []byte) ([]byte, error) {
	n := int64(binary.BigEndian.Uint32(length)) - 4
	if n < 0 || n > 1<<30 {
		return nil, fmt.Errorf("a message of length %d", n)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(r, body)
	return body, err
}

// rawMessage is one that has no kind, from before the start, with its length.
type rawMessage []byte

func (m rawMessage) Encode(dst []byte) ([]byte, error) { return append(dst, m...), nil }

// code says what kind of message it is after all, or which version of the protocol.
func (m rawMessage) code() uint32 {
	if len(m) < 8 {
		return 0
	}
	return binary.BigEndian.Uint32(m[4:])
}
