package pebblestore

import (
	"encoding/binary"

	"github.com/idemd/idemd/store"
)

// filter says of a digest that it certainly was never added, or perhaps was. It is a list
// of Bloom filters, each four times as large as the one before, so that it grows with
// the bucket, stays small for small ones, and a look-up touches few of them.
type filter struct {
	parts []*bloomPart
}

func (f *filter) add(digest store.KeyDigest) {
	if n := len(f.parts); n == 0 || f.parts[n-1].left == 0 {
		capacity := smallestBloom
		if n > 0 {
			capacity = min(4*f.parts[n-1].capacity, largestBloom)
		}
		f.parts = append(f.parts, newBloom(capacity))
	}
	f.parts[len(f.parts)-1].add(digest)
}

func (f *filter) has(digest store.KeyDigest) bool {
	for i := len(f.parts) - 1; i >= 0; i-- {
		if f.parts[i].has(digest) {
			return true
		}
	}
	return false
}

const (
	smallestBloom = 1 << 13 // keys
	largestBloom  = 1 << 22
	keysPerBlock  = 32 // 16 bits a key: about one false answer in a thousand
)

// bloomPart is a Bloom filter of one cache line a key. A digest is uniformly distributed, so
// its bytes serve as the hashes: the last 8 choose the line, 16 others choose 8 bits in it.
// The first 8 are not used: digests that are added in order have them in common.
type bloomPart struct {
	blocks   [][8]uint64
	capacity int
	left     int
}

func newBloom(capacity int) *bloomPart {
	return &bloomPart{blocks: make([][8]uint64, capacity/keysPerBlock), capacity: capacity, left: capacity}
}

func (b *bloomPart) block(digest *store.KeyDigest) *[8]uint64 {
	return &b.blocks[binary.LittleEndian.Uint64(digest[24:])%uint64(len(b.blocks))]
}

func (b *bloomPart) add(digest store.KeyDigest) {
	b.left--
	block := b.block(&digest)
	for i := 8; i < 24; i += 2 {
		bit := binary.LittleEndian.Uint16(digest[i:])
		block[bit>>6&7] |= 1 << (bit & 63)
	}
}

func (b *bloomPart) has(digest store.KeyDigest) bool {
	block := b.block(&digest)
	for i := 8; i < 24; i += 2 {
		bit := binary.LittleEndian.Uint16(digest[i:])
		if block[bit>>6&7]&(1<<(bit&63)) == 0 {
			return false
		}
	}
	return true
}
