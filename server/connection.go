package server

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
)

// connection is the address of a peer and what the server keeps for its connection.
type connection struct {
	net.Addr
	met     func(identity.Principal) // notes who is behind it, who is known
	reading chan struct{}            // has an element for each request that is being read
	streams atomic.Int32             // that its client goes on writing to
	watches atomic.Int32             // of health
}

func newConnection(addr net.Addr) *connection {
	return &connection{Addr: addr, met: func(identity.Principal) {}, reading: make(chan struct{}, maxReading)}
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

// among counts one more of something open until done is called, and refuses it if there are as
// many as there may be.
func among(open *atomic.Int32, most int32, what string) (done func(), err error) {
	done = func() { open.Add(-1) }
	if open.Add(1) > most {
		done()
		return nil, store.Refuse(store.ErrOverloaded, fmt.Sprintf("there are %d %s open; nothing was done", most, what))
	}
	return done, nil
}

// connectionOf is the connection of a call that came through a door.
func connectionOf(ctx context.Context) *connection {
	if from, ok := peer.FromContext(ctx); ok {
		if conn, ok := from.Addr.(*connection); ok {
			return conn
		}
	}
	return newConnection(nil) // a call that did not come over the network shares with nobody
}

// greeting notes at the handshake whose certificate counts.
type greeting struct {
	credentials.TransportCredentials
	identity *identity.Authority
}

// ServerHandshake implements [credentials.TransportCredentials].
func (g greeting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ServerHandshake(raw)
	if at, ok := raw.RemoteAddr().(*connection); ok && err == nil && g.identity.Identifies() {
		principal, unknown := g.identity.Authenticate(identity.OfConnection(info))
		if unknown == nil && g.identity.Knows(principal) {
			at.met(principal)
		}
	}
	return conn, info, err
}

// Clone implements [credentials.TransportCredentials].
func (g greeting) Clone() credentials.TransportCredentials {
	return greeting{g.TransportCredentials.Clone(), g.identity}
}
