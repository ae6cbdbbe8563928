package pebblestore

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

func appendInt64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return appendInt64(b, zeroTime)
	}
	return appendInt64(b, t.UnixMicro())
}

func appendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendString(b []byte, v string) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// decoder reads what the append functions wrote and nothing else. After the first error
// it returns zero values; finish returns that error.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errDamagedValue, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) finish() error {
	if len(d.rest) > 0 {
		d.fail("%d bytes too many", len(d.rest))
	}
	return d.err
}

// take returns the next n bytes, which alias the input; zeros after an error.
func (d *decoder) take(n int) []byte {
	if d.err == nil && n > len(d.rest) {
		d.fail("cut short")
	}
	if d.err != nil {
		d.rest = nil
		return make([]byte, min(n, 64))
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) int64() int64 { return int64(binary.BigEndian.Uint64(d.take(8))) }

func (d *decoder) time() time.Time {
	us := d.int64()
	if us == zeroTime {
		return time.Time{}
	}
	t := time.UnixMicro(us).UTC()
	if t.IsZero() || t.UnixMicro() != us {
		d.fail("time out of range")
	}
	return t
}

func (d *decoder) oneOf(lo, hi byte) byte {
	v := d.take(1)[0]
	if v < lo || v > hi {
		d.fail("value %d is outside %d to %d", v, lo, hi)
		return lo
	}
	return v
}

func (d *decoder) uvarint(limit uint64) uint64 {
	v, width := binary.Uvarint(d.rest)
	if d.err != nil {
		return 0
	}
	if width <= 0 || (width > 1 && d.rest[width-1] == 0) || v > limit {
		d.fail("bad number")
		return 0
	}
	d.rest = d.rest[width:]
	return v
}

// count reads how many items follow. Each takes a byte at least, so a damaged count
// cannot make the decoder run away.
func (d *decoder) count() int { return int(d.uvarint(uint64(len(d.rest)))) }

func (d *decoder) string() string { return string(d.bytes()) }

// bytes returns the next byte string, which aliases the input; nil if it is empty.
func (d *decoder) bytes() []byte {
	n := d.uvarint(math.MaxInt32)
	if n == 0 || d.err != nil {
		return nil
	}
	if n > uint64(len(d.rest)) {
		d.fail("cut short")
		return nil
	}
	return d.take(int(n))
}
