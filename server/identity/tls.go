package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// material is what TLS is made of.
type material struct {
	pair        tls.Certificate
	chain       []*x509.Certificate // of pair
	authorities *x509.CertPool      // of clients; nil: their certificates are not asked for
	roots       []*x509.Certificate // in authorities
}

// parseMaterial reads a certificate, its key and, if given, the authorities of clients.
func parseMaterial(contents [][]byte, now time.Time) (*material, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, err // says nothing of the key's bytes
	}
	if err := validAt(pair.Leaf, now); err != nil {
		return nil, err
	}
	m := &material{pair: pair, chain: []*x509.Certificate{pair.Leaf}}
	for i, der := range pair.Certificate[1:] {
		above, err := x509.ParseCertificate(der)
		if err != nil { // who connects could not read it either
			return nil, fmt.Errorf("certificate %d of the file cannot be read: %w", i+2, err)
		}
		m.chain = append(m.chain, above)
	}
	if len(contents) > 2 {
		m.authorities, m.roots, err = parseAuthorities(contents[2], now)
	}
	return m, err
}

func validAt(cert *x509.Certificate, now time.Time) error {
	if now.Before(cert.NotBefore) || !now.Before(cert.NotAfter) {
		return fmt.Errorf("the certificate is valid from %s to %s", cert.NotBefore.UTC().Format(time.RFC3339), cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// parseAuthorities reads certificates, of which one at least must be valid.
func parseAuthorities(text []byte, now time.Time) (pool *x509.CertPool, roots []*x509.Certificate, err error) {
	pool = x509.NewCertPool()
	problem := errors.New("it holds no certificate of an authority")
	good := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("an authority's certificate cannot be read: %w", err)
		}
		pool.AddCert(cert)
		roots = append(roots, cert)
		if err := validAt(cert, now); err != nil {
			problem = err
			continue
		}
		good = true
	}
	if !good {
		return nil, nil, problem
	}
	return pool, roots, nil
}

// config is the TLS of a server. Sessions are not resumed: every connection shows its
// certificate to the authorities that count now.
func (m *material) config(protocols []string) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.pair}, NextProtos: protocols, SessionTicketsDisabled: true,
	}
	if m.authorities != nil {
		c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, m.authorities
	}
	return c
}

// TLSConfig is the TLS of a listener, which follows the files.
func (a *Authority) TLSConfig(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols, Time: a.now,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := a.material.now().config(protocols)
			c.Time = a.now
			return c, nil
		},
	}
}

// TransportCredentials are those of a gRPC server.
func (a *Authority) TransportCredentials() credentials.TransportCredentials {
	return &transport{credentials.NewTLS(a.TLSConfig("h2")), a}
}

// transport keeps what is known of a client's certificate with its connection.
type transport struct {
	credentials.TransportCredentials
	authority *Authority
}

// connectionInfo is what is known of a connection.
type connectionInfo struct {
	credentials.TLSInfo
	certificate *Certificate // nil: none
}

// ServerHandshake implements [credentials.TransportCredentials].
func (t *transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		t.authority.handshakeFailed(raw, err)
		return nil, nil, err
	}
	of := connectionInfo{TLSInfo: info.(credentials.TLSInfo)}
	if of.certificate = t.authority.certificateOf(&of.State); of.certificate != nil {
		conn = t.authority.untilExpired(conn, of.certificate)
	}
	return conn, of, nil
}

// Clone implements [credentials.TransportCredentials].
func (t *transport) Clone() credentials.TransportCredentials {
	return &transport{t.TransportCredentials.Clone(), t.authority}
}

// certificateOf is the verified certificate of a client; nil if it showed none.
func (a *Authority) certificateOf(state *tls.ConnectionState) *Certificate {
	if len(state.VerifiedChains) == 0 {
		return nil
	}
	return newCertificate(state.VerifiedChains[0], nil)
}

// untilExpired closes a connection when its certificate expires. By then a client has a new one,
// if it is ever to have one, but would show it only on a new connection. What is in flight breaks
// off, and is sent again there.
func (a *Authority) untilExpired(conn net.Conn, c *Certificate) net.Conn {
	closing := &expiring{Conn: conn}
	closing.timer = time.AfterFunc(c.expires.Sub(a.now()), func() { _ = conn.Close() })
	return closing
}

type expiring struct {
	net.Conn
	timer *time.Timer
}

// Close implements [net.Conn].
func (c *expiring) Close() error {
	c.timer.Stop()
	return c.Conn.Close()
}
