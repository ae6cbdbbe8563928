package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/peer"

	"github.com/idemd/idemd/store"
)

const (
	// maxConnections and maxAdminConnections are how many may be open at once.
	maxConnections      = 10_000
	maxAdminConnections = 100
	// doorSilence is how long the door says nothing after it has said that it is full.
	doorSilence = time.Minute
)

// door is a listener that closes further connections at once while so many are open: each
// takes memory before anything is known about who is behind it.
type door struct {
	net.Listener
	most    int64
	logger  *slog.Logger
	refused prometheus.Counter

	open atomic.Int64
	said time.Time // only Accept uses it
}

func newDoor(lis net.Listener, most int64, logger *slog.Logger, m *Metrics) *door {
	return &door{Listener: lis, most: most, logger: logger, refused: m.refusedConnections}
}

// Accept implements net.Listener. One goroutine calls it.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if d.open.Add(1) <= d.most {
			return &passed{Conn: c, door: d, peer: newConnection(c.RemoteAddr())}, nil
		}
		d.open.Add(-1)
		d.refuse(c)
	}
}

func (d *door) refuse(c net.Conn) {
	_ = c.Close() // nothing was said on it
	d.refused.Inc()
	if now := time.Now(); now.Sub(d.said) >= doorSilence {
		d.said = now
		d.logger.Error("connection refused: too many are open", "listener", d.Addr().String(), "at_most", d.most)
	}
}

// passed is a connection that was let in.
type passed struct {
	net.Conn
	door  *door
	peer  *connection
	close sync.Once
}

// RemoteAddr implements net.Conn. It is how a call finds what the server keeps of its
// connection.
func (p *passed) RemoteAddr() net.Addr { return p.peer }

// Close implements net.Conn.
func (p *passed) Close() error {
	p.close.Do(func() { p.door.open.Add(-1) })
	return p.Conn.Close()
}

// connection is the address of a peer and what the server keeps for its connection.
type connection struct {
	net.Addr
	reading  chan struct{} // has an element for each request that is being read
	sessions atomic.Int32  // that are open
}

func newConnection(addr net.Addr) *connection {
	return &connection{Addr: addr, reading: make(chan struct{}, maxReading)}
}

// enter waits until a request of the connection may be read; not for long, because those
// that are being read may be stuck.
func (c *connection) enter(ctx context.Context) error {
	select {
	case c.reading <- struct{}{}:
		return nil
	default:
	}
	patience := time.NewTimer(maxStoreTime)
	defer patience.Stop()
	select {
	case c.reading <- struct{}{}:
		return nil
	case <-patience.C:
		return store.Refuse(store.ErrOverloaded, "too many requests of this connection have not arrived yet; nothing was done, send it again later")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *connection) leave() { <-c.reading }

// connectionOf is the connection of a call that came through a door.
func connectionOf(ctx context.Context) *connection {
	if from, ok := peer.FromContext(ctx); ok {
		if conn, ok := from.Addr.(*connection); ok {
			return conn
		}
	}
	return newConnection(nil) // a call that did not come over the network shares with nobody
}
