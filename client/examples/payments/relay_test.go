package main

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A relay is an address that stays while the process behind it is killed and started again.
// Connections that come when there is no process wait for the next one.
type relay struct {
	listener net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	target  string
	closed  bool
	open    map[net.Conn]bool
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, open: map[net.Conn]bool{}}
	r.changed = sync.NewCond(&r.mu)
	var accepting sync.WaitGroup
	accepting.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.close()
		accepting.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// to names the process; empty while there is none.
func (r *relay) to(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
	r.changed.Broadcast()
}

func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.changed.Broadcast()
	for conn := range r.open {
		_ = conn.Close()
	}
}

func (r *relay) accept() {
	var joined sync.WaitGroup
	defer joined.Wait()
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		joined.Go(func() { r.join(conn) })
	}
}

// join passes on what comes on a connection until either side is gone.
func (r *relay) join(near net.Conn) {
	defer r.forget(near)
	if !r.remember(near) {
		return
	}
	far := r.dial()
	if far == nil {
		return
	}
	defer r.forget(far)
	if !r.remember(far) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(near, far)
		_ = near.Close()
	})
	_, _ = io.Copy(far, near)
	_ = far.Close()
	back.Wait()
}

func (r *relay) remember(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[conn] = true
	return !r.closed
}

func (r *relay) forget(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, conn)
}

// dial connects to the process, or to the one after it; nil once the relay is closed.
func (r *relay) dial() net.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		for r.target == "" && !r.closed {
			r.changed.Wait()
		}
		if r.closed {
			return nil
		}
		conn, err := net.Dial("tcp", r.target)
		if err == nil {
			return conn
		}
		r.target = "" // it is gone
	}
}
