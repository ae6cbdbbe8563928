package server

import (
	"cmp"
	"container/heap"
	"container/list"
	"net"
	"net/netip"
)

// crowds are the strangers at a door, by where they come from. The zero value is empty.
type crowds struct {
	of      map[netip.Prefix]*crowd
	largest crowdHeap // in front the one that makes room next
	all     int
	came    int64 // how many came
	again   int64 // how many came who have been known before
}

// crowd are the strangers of one address, of whom who came first is in front.
type crowd struct {
	from  netip.Prefix
	who   list.List
	index int // in the heap
}

// visitor is a connection in a crowd.
type visitor struct {
	*passed
	crowd *crowd
	at    *list.Element
	turn  int64 // who came before has a lower one
}

// origin is where a connection comes from: an address of IPv4, or the network of IPv6 that one
// machine may have for itself.
func origin(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	from, _ := ip.Prefix(bits) // fails of no address at all, which is one origin
	return from
}

// Len is how many there are.
func (c *crowds) Len() int { return c.all }

// add has a connection be a stranger's. One that was known before is the first of its crowd.
func (c *crowds) add(p *passed, wasKnown bool) *visitor {
	from := origin(p.Conn.RemoteAddr())
	in := c.of[from]
	if in == nil {
		if c.of == nil {
			c.of = map[netip.Prefix]*crowd{}
		}
		in = &crowd{from: from, index: len(c.largest)}
		c.of[from] = in
		c.largest = append(c.largest, in)
	}
	s := &visitor{passed: p, crowd: in}
	if wasKnown {
		c.again++
		s.turn, s.at = -c.again, in.who.PushFront(s)
	} else {
		c.came++
		s.turn, s.at = c.came, in.who.PushBack(s)
	}
	c.all++
	heap.Fix(&c.largest, in.index)
	return s
}

func (c *crowds) remove(s *visitor) {
	in := s.crowd
	in.who.Remove(s.at)
	c.all--
	if in.who.Len() > 0 {
		heap.Fix(&c.largest, in.index)
		return
	}
	heap.Remove(&c.largest, in.index)
	delete(c.of, in.from)
}

// first is who makes room: of those from where most come, who came first.
func (c *crowds) first() *passed { return c.largest[0].first().passed }

func (c *crowd) first() *visitor { return c.who.Front().Value.(*visitor) }

// crowdHeap implements [heap.Interface].
type crowdHeap []*crowd

func (h crowdHeap) Len() int { return len(h) }

func (h crowdHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if by := cmp.Compare(b.who.Len(), a.who.Len()); by != 0 {
		return by < 0
	}
	return a.first().turn < b.first().turn
}

func (h crowdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *crowdHeap) Push(x any) { *h = append(*h, x.(*crowd)) }

// Pop implements [heap.Interface].
func (h *crowdHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
