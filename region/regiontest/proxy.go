package regiontest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	chunkSize = 32 << 10
	// chunksUnderway bounds what a line holds, as a sender's buffer does: 16 MiB.
	chunksUnderway = 512
)

// proxy is where one region reaches another.
type proxy struct {
	listener  net.Listener
	dial      dialFunc
	out, back *line

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	refuses bool
	calls   map[*connection]bool
}

func newProxy(listener net.Listener, dial dialFunc, out, back *line) *proxy {
	p := &proxy{listener: listener, dial: dial, out: out, back: back, calls: map[*connection]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p
}

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &connection{near: near.(*net.TCPConn)}
		c.ctx, c.cancel = context.WithCancel(p.ctx)
		p.remember(c)
		p.wg.Go(func() {
			defer p.forget(c)
			c.run(p)
		})
	}
}

func (p *proxy) remember(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[c] = true
	if p.refuses {
		c.cancel()
	}
}

func (p *proxy) forget(c *connection) {
	c.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, c)
}

func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

// refuse ends all connections, and the new ones at once, or takes that back.
func (p *proxy) refuse(refuses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuses
	if refuses {
		for c := range p.calls {
			c.cancel()
		}
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.cancel()
	p.wg.Wait()
}

// connection is one connection between two regions: from the caller's end, near, to the far one.
type connection struct {
	ctx       context.Context
	cancel    context.CancelFunc
	near, far *net.TCPConn
}

// run makes the connection and carries what is said, until both sides have ended it.
func (c *connection) run(p *proxy) {
	defer reset(c.near)
	if !c.handshake(p) {
		return
	}
	defer reset(c.far)
	stop := context.AfterFunc(c.ctx, func() {
		reset(c.near)
		reset(c.far)
	})
	defer stop()
	var pumps sync.WaitGroup
	pumps.Go(func() { c.pump(c.far, c.near, p.out, p.back) })
	pumps.Go(func() { c.pump(c.near, c.far, p.back, p.out) })
	pumps.Wait()
}

// handshake takes the way there and back that TCP's takes.
func (c *connection) handshake(p *proxy) bool {
	if !p.out.travel(c.ctx, time.Now()) {
		return false
	}
	far, err := p.dial(c.ctx)
	if err == nil {
		c.far = far.(*net.TCPConn)
	}
	if !p.back.travel(c.ctx, time.Now()) && err == nil {
		reset(c.far)
		return false
	}
	return err == nil
}

// chunk is bytes, or the end, and when they were sent.
type chunk struct {
	sent  time.Time
	bytes []byte
	err   error
}

// pump carries bytes from src to dst, and the news of the end.
func (c *connection) pump(dst, src *net.TCPConn, out, back *line) {
	chunks := make(chan chunk, chunksUnderway)
	var reading sync.WaitGroup
	reading.Go(func() { c.read(src, chunks) })
	defer reading.Wait()
	for next := range chunks {
		if !out.travel(c.ctx, next.sent) {
			break
		}
		if next.err != nil {
			end(dst, next.err)
			break
		}
		if _, err := dst.Write(next.bytes); err != nil {
			back.travel(c.ctx, time.Now())
			reset(src)
			break
		}
	}
	for range chunks { // until the reader has seen the end
	}
}

func (c *connection) read(src io.Reader, chunks chan<- chunk) {
	defer close(chunks)
	for {
		buffer := make([]byte, chunkSize)
		n, err := src.Read(buffer)
		if n > 0 {
			chunks <- chunk{sent: time.Now(), bytes: buffer[:n]}
		}
		if err != nil {
			chunks <- chunk{sent: time.Now(), err: err}
			return
		}
	}
}

// end passes on how the other side ended: in order, or not.
func end(dst *net.TCPConn, err error) {
	if errors.Is(err, io.EOF) {
		_ = dst.CloseWrite()
		return
	}
	reset(dst)
}

// reset closes without a word in order.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
