package regiontest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Network is the lines between regions, one per direction. Bytes take the line's delay, in
// order and without a limit of bandwidth.
//
// A line that is held carries nothing, and nobody is told: what is sent waits, as TCP sends it
// again and again, and arrives when the line is opened, if the connection is still there.
type Network struct {
	mu      sync.Mutex
	lines   map[direction]*line
	proxies map[direction]*proxy
}

type direction struct{ from, to string }

func (d direction) back() direction { return direction{d.to, d.from} }

// NewNetwork returns a network whose lines take delay.
func NewNetwork(delay time.Duration, regions ...string) *Network {
	n := &Network{lines: map[direction]*line{}, proxies: map[direction]*proxy{}}
	for _, from := range regions {
		for _, to := range regions {
			if from != to {
				n.lines[direction{from, to}] = newLine(delay)
			}
		}
	}
	return n
}

// SetDelay is how long what from sends takes to reach to.
func (n *Network) SetDelay(from, to string, delay time.Duration) {
	n.line(from, to).setDelay(delay)
}

// Hold lets nothing that from sends reach to.
func (n *Network) Hold(from, to string) { n.line(from, to).hold() }

// Open ends a Hold.
func (n *Network) Open(from, to string) { n.line(from, to).open() }

// Isolate holds what a region sends, what is sent to it, or both.
func (n *Network) Isolate(region string, sends, receives bool) {
	for d, l := range n.lines {
		if sends && d.from == region || receives && d.to == region {
			l.hold()
		}
	}
}

// Cut ends every connection between a region and the others, and refuses new ones.
func (n *Network) Cut(region string) {
	for d := range n.lines {
		if p := n.proxy(d); p != nil && (d.from == region || d.to == region) {
			p.refuse(true)
		}
	}
}

// Heal opens every line, and ends every Cut.
func (n *Network) Heal() {
	for d, l := range n.lines {
		l.open()
		if p := n.proxy(d); p != nil {
			p.refuse(false)
		}
	}
}

// Connections is how many connections region from has to region to.
func (n *Network) Connections(from, to string) int {
	p := n.proxy(direction{from, to})
	if p == nil {
		return 0
	}
	return p.open()
}

// Close ends every connection and waits until nothing runs any more.
func (n *Network) Close() {
	n.mu.Lock()
	proxies := n.proxies
	n.proxies = map[direction]*proxy{}
	n.mu.Unlock()
	for _, p := range proxies {
		p.close()
	}
}

// dialFunc connects to the region at a line's end.
type dialFunc func(ctx context.Context) (net.Conn, error)

// connect has from reach to by the listener; dial is from the line's end.
func (n *Network) connect(from, to string, listener net.Listener, dial dialFunc) {
	d := direction{from, to}
	p := newProxy(listener, dial, n.lines[d], n.lines[d.back()])
	n.mu.Lock()
	n.proxies[d] = p
	n.mu.Unlock()
}

func (n *Network) proxy(d direction) *proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proxies[d]
}

func (n *Network) line(from, to string) *line {
	l := n.lines[direction{from, to}]
	if l == nil {
		panic(fmt.Sprintf("there is no line from %q to %q", from, to))
	}
	return l
}

// line is one direction between two regions.
type line struct {
	mu     sync.Mutex
	delay  time.Duration
	opened chan struct{} // closed while the line carries
}

func newLine(delay time.Duration) *line {
	l := &line{delay: delay, opened: make(chan struct{})}
	close(l.opened)
	return l
}

func (l *line) setDelay(delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = delay
}

func (l *line) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.carries() {
		l.opened = make(chan struct{})
	}
}

func (l *line) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.carries() {
		close(l.opened)
	}
}

// carries is called with the lock held.
func (l *line) carries() bool {
	select {
	case <-l.opened:
		return true
	default:
		return false
	}
}

// travel returns when what was sent at an instant arrives, and false if ctx ends before.
func (l *line) travel(ctx context.Context, sent time.Time) bool {
	for {
		l.mu.Lock()
		due, opened, carries := sent.Add(l.delay), l.opened, l.carries()
		l.mu.Unlock()
		left := time.Until(due)
		if carries && left <= 0 {
			return ctx.Err() == nil
		}
		timer := time.NewTimer(max(left, 0))
		if !carries {
			timer.Stop()
			select {
			case <-opened:
			case <-ctx.Done():
				return false
			}
			continue
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}
