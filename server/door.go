package server

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/server/identity"
)

const (
	// maxConnections and maxAdminConnections are how many may be open at once, if so many files
	// may be.
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
	// lookInterval is how often it is looked who is known still.
	lookInterval = time.Second
	// doorSilence is how long the door says nothing after it has said that it is full.
	doorSilence = time.Minute
)

// door is a listener that keeps only so many connections open: each takes memory before anything
// is known about who is behind it. Strangers, of whom nothing is known that counts, have some of
// the places, not for long, and of them who came first from where most come makes room. So a caller
// that comes, who is a stranger too, has time to show who it is however many others come from few
// addresses; and from many, as much as they take to take all places anew. The other
// places are for those who are known, and of them whoever has most makes room: who has few is
// not kept out by who has many.
type door struct {
	net.Listener
	most      int
	strangers int // how many of them may be; 0: nobody is one, because nobody is told apart
	logger    *slog.Logger
	metrics   *Metrics

	mu      sync.Mutex
	unknown crowds // the strangers
	known   map[identity.Principal]map[*passed]struct{}
	open    int // of those who are known
	full    bool
	said    map[bool]time.Time // that it is full, to those who are known and to others
}

func newDoor(lis net.Listener, most, strangers int, logger *slog.Logger, m *Metrics) *door {
	return &door{Listener: lis, most: most, strangers: strangers, logger: logger, metrics: m, known: map[identity.Principal]map[*passed]struct{}{}, said: map[bool]time.Time{}}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := &passed{Conn: c, door: d, peer: newConnection(c.RemoteAddr()), decided: make(chan struct{})}
		p.heard.Store(time.Now().UnixNano())
		if d.enter(p) {
			return p, nil
		}
	}
}

// enter lets a connection in: that of a stranger or, where nobody is one, any if there is room.
func (d *door) enter(p *passed) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.strangers > 0:
		p.peer.met = p.isOf
		d.estrange(p, false)
	case d.open < d.most:
		d.admit(p, "")
	default:
		d.refuse(p)
		return false
	}
	return true
}

// estrange has a connection be a stranger's. d.mu is held.
func (d *door) estrange(p *passed, wasKnown bool) {
	p.stranger = d.unknown.add(p, wasKnown)
	p.leaving = time.AfterFunc(strangerTime, p.expire)
	if d.unknown.Len() > d.strangers {
		d.refuse(d.unknown.first())
	}
}

// admit has a connection be of somebody who is known. d.mu is held.
func (d *door) admit(p *passed, principal identity.Principal) {
	if d.known[principal] == nil {
		d.known[principal] = map[*passed]struct{}{}
	}
	d.known[principal][p] = struct{}{}
	d.count(1)
	p.principal = principal
	p.heard.Store(time.Now().UnixNano()) // by which it is known
	p.known.Store(true)
	p.decide.Do(func() { close(p.decided) })
	if d.open > d.most-d.strangers {
		d.refuse(d.longestIdle(d.greediest(principal)))
	}
}

// greediest is who has most connections; the one who has just come, if nobody has more.
func (d *door) greediest(newcomer identity.Principal) identity.Principal {
	most := newcomer
	for principal, of := range d.known {
		if len(of) > len(d.known[most]) {
			most = principal
		}
	}
	return most
}

// longestIdle is the connection on which nothing has come for longest.
func (d *door) longestIdle(principal identity.Principal) (idle *passed) {
	for p := range d.known[principal] {
		if idle == nil || p.heard.Load() < idle.heard.Load() {
			idle = p
		}
	}
	return idle
}

// lookAgain makes strangers again of those who are not known any more. They are the first
// to make room of those who come from as many.
func (d *door) lookAgain(knows func(identity.Principal) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for principal, of := range d.known {
		if d.strangers == 0 || knows(principal) {
			continue
		}
		for p := range of {
			d.leave(p)
			d.estrange(p, true)
		}
	}
}

// refuse closes a connection for want of room. d.mu is held.
func (d *door) refuse(p *passed) {
	known, has := p.known.Load(), len(d.known[p.principal])
	_ = d.shut(p) // nothing was said on it that counts
	d.metrics.refusedConnections.Inc()
	if now := time.Now(); now.Sub(d.said[known]) >= doorSilence {
		d.said[known] = now
		attrs := []any{"listener", d.Addr().String(), "at_most", d.most, "strangers_at_most", d.strangers}
		if known {
			attrs = append(attrs, "principal", string(p.principal), "has", has)
		}
		d.logger.Error("connection refused: too many are open", attrs...)
	}
}

// shut closes a connection. d.mu is held.
func (d *door) shut(p *passed) error {
	d.leave(p)
	p.decide.Do(func() { close(p.decided) })
	return p.Conn.Close()
}

// leave makes room. d.mu is held.
func (d *door) leave(p *passed) {
	if p.stranger != nil {
		d.unknown.remove(p.stranger)
		p.stranger = nil
		p.leaving.Stop()
	}
	if p.known.Swap(false) {
		delete(d.known[p.principal], p)
		if len(d.known[p.principal]) == 0 {
			delete(d.known, p.principal)
		}
		d.count(-1)
	}
}

// count notes that there is one more of those who are known, or one less.
func (d *door) count(more int) {
	d.open += more
	if full := d.open >= d.most-d.strangers; full != d.full {
		d.full = full
		d.metrics.listenersFull.Add(2*oneIf(full) - 1)
	}
}

func (d *door) isFull() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full
}

// passed is a connection that was let in.
type passed struct {
	net.Conn
	door *door
	peer *connection

	read    int           // bytes; only Read uses it
	decided chan struct{} // closed once it was of somebody who is known, or has left
	decide  sync.Once
	heard   atomic.Int64 // when something came last, in nanoseconds
	known   atomic.Bool  // it is of somebody who is known; door.mu guards its changes

	// The rest door.mu guards.
	principal identity.Principal
	stranger  *visitor    // among those that are unknown; nil: it is none
	leaving   *time.Timer // of a stranger
}

// Read implements net.Conn. Once a stranger has sent enough it waits for what becomes of it: what
// was read may be a call that is about to be known.
func (p *passed) Read(b []byte) (int, error) {
	if p.read >= strangerBytes {
		<-p.decided
		n, err := p.Conn.Read(b)
		p.heard.Store(time.Now().UnixNano())
		return n, err
	}
	n, err := p.Conn.Read(b[:min(len(b), strangerBytes-p.read)])
	p.heard.Store(time.Now().UnixNano())
	p.read += n
	return n, err
}

// RemoteAddr implements net.Conn. It is how a call finds what the server keeps of its
// connection.
func (p *passed) RemoteAddr() net.Addr { return p.peer }

// Close implements net.Conn.
func (p *passed) Close() error {
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	return p.door.shut(p)
}

// isOf notes who is behind a stranger's connection.
func (p *passed) isOf(principal identity.Principal) {
	if p.known.Load() {
		return // every call asks
	}
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	if p.stranger != nil { // it is still there
		p.door.leave(p)
		p.door.admit(p, principal)
	}
}

// expire closes a stranger.
func (p *passed) expire() {
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	if p.stranger != nil {
		_ = p.door.shut(p) // there is nobody to tell
	}
}
