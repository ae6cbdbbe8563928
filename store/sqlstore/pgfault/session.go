package pgfault

import (
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// session is one connection of a client, and its own to the server.
type session struct {
	proxy      *Proxy
	client     net.Conn
	server     net.Conn
	fromClient chan message // closed when the client has gone
	fromServer chan message // closed when the server has gone
	statements map[string]statement
	portals    map[string]statement
	tag        string // replaces the server's command tags, unless empty
	status     byte   // of the transaction, by the server's last ReadyForQuery
	failed     bool   // the server skips messages until the next Sync

	// While an action applies, until the server is ready again, its answers go here and not to the client.
	keep  func(message)
	ready func() error
}

func newSession(p *Proxy, client, server net.Conn) *session {
	return &session{
		proxy: p, client: client, server: server, status: 'I',
		// A client that goes away must not take back what it has sent: it is read well ahead.
		fromClient: make(chan message, 1024),
		fromServer: make(chan message),
		statements: map[string]statement{}, portals: map[string]statement{},
	}
}

func (s *session) run() error {
	startup, err := s.receiveStartup()
	if err != nil || startup == nil {
		return err
	}
	over := make(chan struct{})
	defer close(over)
	s.proxy.running.Go(func() { readAll(s.client, s.fromClient, over) })
	s.proxy.running.Go(func() { readAll(s.server, s.fromServer, over) })
	connect := func() error { return s.toServer(startup) }
	if err := s.act(s.proxy.choose("", true), execution{forward: connect, refuse: connect}); err != nil {
		return err
	}
	for {
		if err := s.next(); err != nil {
			return err
		}
	}
}

// receiveStartup returns the startup message, or nil when the connection was for something else, which is done.
func (s *session) receiveStartup() (encoder, error) {
	for {
		var length [4]byte
		if _, err := io.ReadFull(s.client, length[:]); err != nil {
			return nil, err
		}
		body, err := readBody(s.client, length[:])
		if err != nil {
			return nil, err
		}
		raw := rawMessage(append(length[:], body...))
		switch raw.code() {
		case 80877103, 80877104: // TLS, GSS encryption
			if _, err := s.client.Write([]byte("N")); err != nil {
				return nil, err
			}
		case 80877102: // cancel
			if err := s.toServer(raw); err != nil {
				return nil, err
			}
			_, err := io.Copy(io.Discard, s.server) // the server closes when it has done so
			return nil, err
		default:
			return s.proxy.forwardStartup(raw)
		}
	}
}

// next forwards what comes next, from either side.
func (s *session) next() error {
	select {
	case m, ok := <-s.fromClient:
		if !ok {
			return errOver
		}
		return s.handle(m)
	case m, ok := <-s.fromServer:
		if !ok {
			return errOver
		}
		return s.answer(m)
	}
}

func (s *session) handle(m message) error {
	switch m.kind {
	case 'Q':
		return s.query(m)
	case 'S':
		s.failed = false
		return s.exchange(ready, m)
	case 'F': // function call
		return s.exchange(ready, m)
	case 'P', 'B', 'E', 'D', 'C':
		if s.failed {
			return nil // the server would skip it
		}
		return s.extended(m)
	case 'H': // every message of the extended protocol is followed by a Flush already
		return nil
	default: // answers to the server, of authentication and COPY, and the end
		return s.toServer(m)
	}
}

func (s *session) extended(m message) error {
	switch m.kind {
	case 'P':
		return s.parse(m)
	case 'B':
		return s.bind(m)
	case 'E':
		return s.execute(m)
	case 'D':
		return s.exchange("Tn", m, &pgproto3.Flush{})
	default:
		return s.close(m)
	}
}

// ready is the kind of the server's message that ends every exchange but those within the extended protocol.
const ready = "Z"

// exchange sends messages to the server and passes on its answers, up to one of the given kinds or, in the extended
// protocol, an error.
func (s *session) exchange(last string, messages ...encoder) error {
	if err := s.toServer(messages...); err != nil {
		return err
	}
	var copying <-chan message // what the client sends while the server waits for it
	for {
		select {
		case m, ok := <-copying:
			if !ok {
				return errOver
			}
			if err := s.toServer(m); err != nil {
				return err
			}
		case m, ok := <-s.fromServer:
			if !ok {
				return errOver
			}
			if err := s.answer(m); err != nil {
				return err
			}
			switch {
			case strings.IndexByte(last, m.kind) >= 0:
				return nil
			case m.kind == 'E' && last != ready:
				s.failed = true
				return nil
			case m.kind == 'G': // copy in
				copying = s.fromClient
			}
		}
	}
}

// answer passes on a message of the server.
func (s *session) answer(m message) error {
	switch m.kind {
	case 'Z':
		return s.readyForQuery(m)
	case 'C':
		if s.tag != "" {
			m = message{kind: 'C', body: append([]byte(s.tag), 0)}
		}
	}
	if s.keep == nil || strings.IndexByte("NAS", m.kind) >= 0 { // notices and the like answer nothing
		s.toClient(m)
	} else {
		s.keep(m)
	}
	return nil
}

func (s *session) readyForQuery(m message) error {
	if len(m.body) != 1 {
		return fmt.Errorf("ReadyForQuery of %d bytes", len(m.body))
	}
	s.status = m.body[0]
	done := s.ready
	s.keep, s.ready = nil, nil
	if done != nil {
		return done()
	}
	s.toClient(m)
	return nil
}

// act does what a rule wants with an execution; nil is no rule.
func (s *session) act(a *Added, e execution) error {
	if a == nil {
		return e.forward()
	}
	return a.rule.Do.apply(s, e, a.fire)
}

// swallowUntilReady drops the server's answers until it is ready for more, and calls done in the place of that.
func (s *session) swallowUntilReady(done func() error) {
	s.keep, s.ready = func(message) {}, done
}

// holdUntilReady keeps the server's answers until it is ready for more, and gives them to done in the place of that.
func (s *session) holdUntilReady(done func([]message) error) {
	var held []message
	s.keep = func(m message) { held = append(held, m) }
	s.ready = func() error { return done(held) }
}

// abort leaves a transaction that is open aborted.
func (s *session) abort() error {
	if s.status != 'T' {
		return nil
	}
	s.swallowUntilReady(func() error { return nil })
	return s.exchange(ready, &pgproto3.Query{String: nonsense})
}

func (s *session) wait(until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	case <-s.proxy.over:
		return errOver
	}
}

// hangUp ends the session as a server does that goes down: with an error, and nothing after it.
func (s *session) hangUp(code string) error {
	_ = s.server.Close() // also ends a transaction that is open
	s.toClient(injected(code))
	if tcp, ok := s.client.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	for range s.fromClient { // closed with something unread, the connection would be reset, the error lost
	}
	return errOver
}

// reset ends the client's connection the hard way. The server's ends as the session does.
func (s *session) reset() error {
	if tcp, ok := s.client.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return err
		}
	}
	return errOver
}

func (s *session) toServer(messages ...encoder) error { return write(s.server, messages) }

// toClient is for a client that may have gone: that must not keep the server from what is under way.
func (s *session) toClient(messages ...encoder) { _ = write(s.client, messages) }

func write(w io.Writer, messages []encoder) error {
	var raw []byte
	for _, m := range messages {
		var err error
		if raw, err = m.Encode(raw); err != nil {
			return err
		}
	}
	_, err := w.Write(raw)
	return err
}
