package pebblestore

import (
	"encoding/binary"
	"time"

	"github.com/idemd/idemd/store"
)

// The first byte of every key in Pebble says what it is.
const (
	prefixChain     = 'c' // c | commit sequence (8)                      -> clock of that commit
	prefixEvent     = 'e' // e | tier | bucket start (8) | digest | n (8) -> event
	prefixMeta      = 'm' // m | name                                     -> one fact about the store
	prefixNamespace = 'n' // n | name                                     -> namespace
	prefixRow       = 'r' // r | tier | bucket start (8) | digest         -> record
)

const (
	bucketKeyLen = 1 + 1 + 8
	rowKeyLen    = bucketKeyLen + len(store.KeyDigest{})
	eventKeyLen  = rowKeyLen + 8
)

var (
	metaChainLow = []byte("mchain-low") // sequence of the oldest chain entry that is kept
	metaStoreID  = []byte("mstore-id")
)

// bucketID names one bucket: all rows of a tier granted in [start, start + width).
type bucketID struct {
	tier  store.Tier
	start int64 // µs since 1970
}

// bucketOf returns the bucket for a grant at t.
func bucketOf(tier store.Tier, t time.Time) bucketID {
	width := tier.BucketWidth().Microseconds()
	us := t.UnixMicro()
	start := us - us%width
	if start > us {
		start -= width
	}
	return bucketID{tier: tier, start: start}
}

func (b bucketID) end() time.Time {
	return time.UnixMicro(b.start).UTC().Add(b.tier.BucketWidth())
}

// dropAfter is the instant after which nothing in the bucket is live, except what is
// held, or was released or ended by an operator late.
func (b bucketID) dropAfter() time.Time {
	return b.end().Add(b.tier.MaxAttempt() + b.tier.MaxRetention())
}

func (b bucketID) describe() store.Bucket {
	return store.Bucket{
		Tier:      b.tier,
		Start:     time.UnixMicro(b.start).UTC(),
		End:       b.end(),
		DropAfter: b.dropAfter(),
	}
}

// appendBucketKey appends what all keys of a bucket start with. The sign bit of the start
// is flipped, so that the order of keys is the order of time also before 1970.
func appendBucketKey(dst []byte, prefix byte, b bucketID) []byte {
	dst = append(dst, prefix, byte(b.tier))
	return binary.BigEndian.AppendUint64(dst, uint64(b.start)^(1<<63))
}

func appendRowKey(dst []byte, b bucketID, digest store.KeyDigest) []byte {
	return append(appendBucketKey(dst, prefixRow, b), digest[:]...)
}

func appendEventKey(dst []byte, b bucketID, digest store.KeyDigest, n uint64) []byte {
	dst = append(appendBucketKey(dst, prefixEvent, b), digest[:]...)
	return binary.BigEndian.AppendUint64(dst, n)
}

// bucketSpan returns the keys [from, to) of a bucket.
func bucketSpan(prefix byte, b bucketID) (from, to []byte) {
	return appendBucketKey(nil, prefix, b),
		appendBucketKey(nil, prefix, bucketID{tier: b.tier, start: b.start + b.tier.BucketWidth().Microseconds()})
}

// tierSpan returns the keys [from, to) of a tier's rows.
func tierSpan(tier store.Tier) (from, to []byte) {
	return []byte{prefixRow, byte(tier)}, []byte{prefixRow, byte(tier) + 1}
}

// splitRowKey reverses appendRowKey.
func splitRowKey(key []byte) (bucketID, store.KeyDigest, bool) {
	if len(key) != rowKeyLen || key[0] != prefixRow {
		return bucketID{}, store.KeyDigest{}, false
	}
	b := bucketID{tier: store.Tier(key[1]), start: int64(binary.BigEndian.Uint64(key[2:]) ^ (1 << 63))}
	return b, store.KeyDigest(key[bucketKeyLen:]), b.tier.MaxRetention() > 0
}

func chainKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixChain}, seq)
}

func namespaceKey(name string) []byte {
	return append([]byte{prefixNamespace}, name...)
}
