package pebblestore

import "github.com/idemd/idemd/store"

// cache holds the rows used last, up to a number of bytes. The rows that the batch in the
// making has changed are in it too: it sheds rows only in trim, which is called when
// that batch has been applied and so can be read from Pebble. Only the loop uses it.
type cache struct {
	limit, size int
	nodes       map[store.KeyDigest]*cacheNode
	ends        cacheNode // ring: ends.next is the row used last
}

type cacheNode struct {
	digest     store.KeyDigest
	row        *row
	size       int
	prev, next *cacheNode
}

func newCache(limit int) *cache {
	c := &cache{limit: limit, nodes: map[store.KeyDigest]*cacheNode{}}
	c.ends.prev, c.ends.next = &c.ends, &c.ends
	return c
}

// get returns the row, or nil if it is not cached.
func (c *cache) get(digest store.KeyDigest) *row {
	n := c.nodes[digest]
	if n == nil {
		return nil
	}
	n.unlink()
	c.pushFront(n)
	return n.row
}

func (c *cache) put(digest store.KeyDigest, r *row) {
	n := c.nodes[digest]
	if n == nil {
		n = &cacheNode{digest: digest}
		c.nodes[digest] = n
	} else {
		n.unlink()
		c.size -= n.size
	}
	n.row, n.size = r, rowBytes(r)
	c.size += n.size
	c.pushFront(n)
}

func (c *cache) remove(digest store.KeyDigest) {
	if n := c.nodes[digest]; n != nil {
		c.drop(n)
	}
}

// trim drops the rows not used for longest until the rest fits.
func (c *cache) trim() {
	for c.size > c.limit && c.ends.prev != &c.ends {
		c.drop(c.ends.prev)
	}
}

func (c *cache) drop(n *cacheNode) {
	n.unlink()
	c.size -= n.size
	delete(c.nodes, n.digest)
}

func (c *cache) pushFront(n *cacheNode) {
	n.prev, n.next = &c.ends, c.ends.next
	n.prev.next, n.next.prev = n, n
}

func (n *cacheNode) unlink() { n.prev.next, n.next.prev = n.next, n.prev }

// rowBytes estimates what a cached row takes in memory.
func rowBytes(r *row) int {
	const fixed = 640 // node, row, record, map entry
	k := &r.rec.Key
	n := fixed + len(k.Namespace) + len(k.Scope) + len(k.ID) + len(k.Entity) +
		len(r.rec.AttemptID) + len(r.rec.Fingerprint.Digest) + 32*len(r.events)
	for _, id := range r.rec.Ended {
		n += 16 + len(id)
	}
	if o := r.rec.Outcome; o != nil {
		n += 160 + o.Size() + 48*(len(o.Header)+len(o.Trailer))
	}
	return n
}
