// Package pgfault is a proxy between a client and PostgreSQL for tests. It understands the
// protocol, and does to chosen statements what networks and servers do at the worst moment.
//
//	p := pgfault.New(t, pgtest.Shared(t).NewDatabase(t))
//	pool, err := pgxpool.New(ctx, p.DSN())
//	lost := p.Add(pgfault.Rule{Match: regexp.MustCompile("(?i)^commit"), Nth: 2, Do: pgfault.ResetAfter()})
//	… the second COMMIT is carried out, and the client's connection is reset …
//	if lost.Fired() != 1 { … }
//
// Each connection is handled in lock-step: a message of the client is answered by the server before
// the next is forwarded, so where each connection stands is known whenever a rule applies.
//
// What it does not do: TLS, statements prepared in SQL (PREPARE, EXECUTE: the text of EXECUTE is what rules
// see), and, while an …After action applies, clients that Flush and wait for an answer before they Sync.
package pgfault

import (
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy listens on a port of its own and forwards to one server.
type Proxy struct {
	t        testing.TB
	dsn      string // through the proxy
	network  string // of the server
	address  string
	listener net.Listener
	over     chan struct{} // closed at the test's end: nothing stalls any longer
	running  sync.WaitGroup
	mu       sync.Mutex
	closed   bool
	open     map[net.Conn]bool
	rules    []*Added
	dropped  []string // parameters that the server does not get
}

// New starts a proxy to the server of a connection string, a URL with sslmode=disable. It ends with the test.
func New(t testing.TB, dsn string) *Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if config.TLSConfig != nil {
		t.Fatal("pgfault does not speak TLS: the connection string must say sslmode=disable")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, listener: listener, over: make(chan struct{}), open: map[net.Conn]bool{}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	if p.dsn, err = redirect(dsn, listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	p.running.Go(p.accept)
	t.Cleanup(p.end)
	return p
}

func redirect(dsn, address string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	if u.Scheme == "" {
		return "", errors.New("pgfault needs a connection string that is a URL")
	}
	query := u.Query()
	query.Del("host")
	query.Del("port")
	u.Host, u.RawQuery = address, strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus as it is
	return u.String(), nil
}

// DSN is the connection string of New, through the proxy.
func (p *Proxy) DSN() string { return p.dsn }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	upstream, err := net.Dial(p.network, p.address)
	if err != nil {
		return // the client sees what it would see of a server that is down: a connection closed
	}
	defer upstream.Close()
	if !p.track(client, upstream) {
		return
	}
	defer p.untrack(client, upstream)
	if err := newSession(p, client, upstream).run(); err != nil && !ended(err) {
		p.t.Errorf("pgfault: %v", err)
	}
}

// errOver ends a session as a rule wants it.
var errOver = errors.New("the session is over")

// ended reports whether an error is only one side's going away.
func ended(err error) bool {
	var network net.Error
	return errors.Is(err, errOver) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &network)
}

func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.open[conn] = true
	}
	return !p.closed
}

func (p *Proxy) untrack(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.open, conn)
	}
}

func (p *Proxy) end() {
	close(p.over)
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for conn := range p.open {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}
