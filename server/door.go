package server

import (
	"container/list"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxConnections and maxAdminConnections are how many may be open at once.
	maxConnections      = 10_000
	maxAdminConnections = 100
	// strangersShare is which part of them strangers may be, where callers are told apart.
	strangersShare = 4
	// strangerTime is how long a stranger may stay. A caller is none once its handshake showed a
	// certificate that counts, or its first call a token.
	strangerTime = 10 * time.Second
	// strangerBytes is how much is read of a stranger: a handshake with a certificate, the
	// metadata of a call and some questions after health.
	strangerBytes = 64 << 10
	// doorSilence is how long the door says nothing after it has said that it is full.
	doorSilence = time.Minute
)

// door is a listener that keeps only so many connections open: each takes memory before anything
// is known about who is behind it. Strangers, of whom nothing is known that counts, have few of
// the places and not for long, and of them the one who came first makes room. So a caller that
// comes, who is a stranger too, has time to show who it is however many others come.
type door struct {
	net.Listener
	most      int
	strangers int // how many may be; 0: nobody is one, because nobody is told apart
	logger    *slog.Logger
	refused   prometheus.Counter

	mu      sync.Mutex
	open    int
	unknown list.List // the strangers, who came first in front

	said time.Time // only Accept uses it
}

func newDoor(lis net.Listener, most, strangers int, logger *slog.Logger, m *Metrics) *door {
	return &door{Listener: lis, most: most, strangers: strangers, logger: logger, refused: m.refusedConnections}
}

// Accept implements net.Listener. One goroutine calls it.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		in, out := d.enter(c)
		if out != nil {
			d.refuse(out)
		}
		if in != nil {
			return in, nil
		}
	}
}

// enter lets a connection in, and returns the one that is to be closed if there is no room: the
// stranger who came first or, if there is none, the new one.
func (d *door) enter(c net.Conn) (in *passed, out net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open >= d.most || d.strangers > 0 && d.unknown.Len() >= d.strangers {
		first := d.unknown.Front()
		if first == nil {
			return nil, c
		}
		leaving := first.Value.(*passed)
		d.leave(leaving)
		out = leaving
	}
	d.open++
	in = &passed{Conn: c, door: d, peer: newConnection(c.RemoteAddr()), decided: make(chan struct{})}
	if d.strangers == 0 {
		close(in.decided)
		return in, out
	}
	in.peer.met = sync.OnceFunc(func() { d.know(in) })
	in.stranger = d.unknown.PushBack(in)
	in.leaving = time.AfterFunc(strangerTime, in.expire)
	return in, out
}

func (d *door) refuse(c net.Conn) {
	_ = c.Close() // nothing was said on it that counts
	d.refused.Inc()
	if now := time.Now(); now.Sub(d.said) >= doorSilence {
		d.said = now
		d.logger.Error("connection refused: too many are open", "listener", d.Addr().String(), "at_most", d.most, "strangers_at_most", d.strangers)
	}
}

// know notes that a connection is no stranger's.
func (d *door) know(p *passed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.decide(p)
}

// decide ends a connection's time as a stranger, and reports whether it was one. d.mu is held.
func (d *door) decide(p *passed) bool {
	if p.stranger == nil {
		return false
	}
	d.unknown.Remove(p.stranger)
	p.stranger = nil
	p.leaving.Stop()
	close(p.decided)
	return true
}

// leave makes room. d.mu is held.
func (d *door) leave(p *passed) {
	d.decide(p)
	if !p.left {
		p.left = true
		d.open--
	}
}

// passed is a connection that was let in.
type passed struct {
	net.Conn
	door *door
	peer *connection

	read    int           // bytes; only Read uses it
	decided chan struct{} // closed once it is no stranger's, or has left

	// The rest door.mu guards.
	stranger *list.Element // among those that are unknown; nil: it is none
	leaving  *time.Timer   // of a stranger
	left     bool
}

// Read implements net.Conn. Once a stranger has sent enough it waits for what becomes of it: what
// was read may be a call that is about to be known.
func (p *passed) Read(b []byte) (int, error) {
	if p.read >= strangerBytes {
		<-p.decided
		return p.Conn.Read(b)
	}
	n, err := p.Conn.Read(b[:min(len(b), strangerBytes-p.read)])
	p.read += n
	return n, err
}

// RemoteAddr implements net.Conn. It is how a call finds what the server keeps of its
// connection.
func (p *passed) RemoteAddr() net.Addr { return p.peer }

// Close implements net.Conn.
func (p *passed) Close() error {
	p.door.mu.Lock()
	p.door.leave(p)
	p.door.mu.Unlock()
	return p.Conn.Close()
}

// expire closes a stranger.
func (p *passed) expire() {
	p.door.mu.Lock()
	still := p.door.decide(p)
	p.door.mu.Unlock()
	if still {
		_ = p.Close() // there is nobody to tell
	}
}
