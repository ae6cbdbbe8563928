package pebblestore

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

func digestOf(n int) store.KeyDigest {
	return store.Key{ID: string(binary.BigEndian.AppendUint64(nil, uint64(n)))}.Digest()
}

func TestFilter(t *testing.T) {
	const n = 200_000
	var f filter
	if f.has(digestOf(0)) {
		t.Error("an empty filter has something")
	}
	added := make([]store.KeyDigest, n)
	for i := range added {
		added[i] = digestOf(i)
	}
	// In order, as when they are read from a bucket.
	slices.SortFunc(added, func(a, b store.KeyDigest) int { return bytes.Compare(a[:], b[:]) })
	for _, digest := range added {
		f.add(digest)
	}
	wrong := 0
	for i := range n {
		if !f.has(digestOf(i)) {
			t.Fatalf("digest %d was added and is not there", i)
		}
		if f.has(digestOf(n + i)) {
			wrong++
		}
	}
	if wrong > n/100 {
		t.Errorf("%d of %d absent digests perhaps there, want at most 1 %%", wrong, n)
	}
	size := 0
	for _, part := range f.parts {
		size += len(part.blocks) * 64
	}
	if len(f.parts) > 4 || size > 8*n {
		t.Errorf("%d parts of %d bytes for %d digests", len(f.parts), size, n)
	}
}

func TestCacheShedsTheLeastUsedInTrimOnly(t *testing.T) {
	one := rowBytes(inProgressRow())
	c := newCache(2 * one)
	for i := range 3 {
		c.put(digestOf(i), inProgressRow())
	}
	if c.get(digestOf(0)) == nil {
		t.Fatal("a row is gone before trim")
	}
	c.trim()
	for i, want := range []bool{true, false, true} {
		if got := c.get(digestOf(i)) != nil; got != want {
			t.Errorf("row %d cached: %v, want %v", i, got, want)
		}
	}
	c.put(digestOf(0), completedRow())
	c.put(digestOf(2), completedRow())
	c.trim()
	if c.size > c.limit || c.size != sizeOf(c) {
		t.Errorf("size %d of %d, rows have %d", c.size, c.limit, sizeOf(c))
	}
}

func sizeOf(c *cache) (size int) {
	for _, n := range c.nodes {
		size += rowBytes(n.row)
	}
	return size
}

func TestBucketsOfAKey(t *testing.T) {
	for _, tier := range store.Tiers {
		id := bucketOf(tier, at(0))
		if !id.describe().Start.Equal(id.end().Add(-tier.BucketWidth())) {
			t.Errorf("tier %d: start %v, end %v", tier, id.describe().Start, id.end())
		}
		for _, us := range []int64{0, -1, 1} {
			b := bucketOf(tier, id.describe().Start.Add(time.Duration(us)*time.Microsecond))
			if want := us >= 0; (b == id) != want {
				t.Errorf("tier %d, %d µs from its start: in the bucket %v, want %v", tier, us, b == id, want)
			}
		}
		key := appendRowKey(nil, id, digestOf(1))
		if got, digest, ok := splitRowKey(key); !ok || got != id || digest != digestOf(1) {
			t.Errorf("row key comes back as %v %x %v", got, digest, ok)
		}
		from, to := bucketSpan(prefixRow, id)
		if string(from) > string(key) || string(to) <= string(key) {
			t.Error("row key is outside of its bucket's span")
		}
	}
	if a, b := bucketOf(store.TierHour, at(0).AddDate(-80, 0, 0)), bucketOf(store.TierHour, at(0)); string(appendBucketKey(nil, prefixRow, a)) >= string(appendBucketKey(nil, prefixRow, b)) {
		t.Error("buckets from before 1970 are not first")
	}
}
