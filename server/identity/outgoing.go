package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
)

// Verifies reports whether it can be told whose certificate another server shows.
func (a *Authority) Verifies() bool {
	return a.Encrypts() && a.material.now().authorities != nil
}

// PeerCredentials are those by which this server, with its own certificate, calls another one.
// That one's certificate is of the authorities of clients, and of the principal; if the principal
// is empty, of the host that is called. The files count as they are when a connection is made.
func (a *Authority) PeerCredentials(principal string) credentials.TransportCredentials {
	return &outgoing{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}), a, Principal(principal)}
}

type outgoing struct {
	credentials.TransportCredentials
	authority *Authority
	principal Principal
}

// ClientHandshake implements [credentials.TransportCredentials].
func (o *outgoing) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	m := o.authority.material.now()
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.pair}, Time: o.authority.now,
		InsecureSkipVerify: true, //nolint:gosec // verified below: a principal is no name of a host
		VerifyConnection:   func(state tls.ConnectionState) error { return o.verify(state, m.authorities, host) },
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// Clone implements [credentials.TransportCredentials].
func (o *outgoing) Clone() credentials.TransportCredentials {
	return &outgoing{o.TransportCredentials.Clone(), o.authority, o.principal}
}

func (o *outgoing) verify(state tls.ConnectionState, authorities *x509.CertPool, host string) error {
	if authorities == nil {
		return errors.New("there are no authorities (--tls-client-ca) to verify the other server's certificate by")
	}
	options := x509.VerifyOptions{Roots: authorities, CurrentTime: o.authority.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if o.principal == "" {
		options.DNSName = host
	}
	chains, err := verify(state.PeerCertificates, options)
	if err != nil {
		return refusalOf(err, host, options.CurrentTime)
	}
	if o.principal == "" {
		return nil
	}
	c := newCertificate(chains[0], nil)
	if !c.is(o.principal) {
		return fmt.Errorf("the other server is not %s, which the topology names", o.principal)
	}
	return nil
}

// refusalOf says why a certificate does not count, and nothing of what is in it: the names of
// whoever answers at an address are not for those who are told that it cannot be reached.
func refusalOf(err error, host string, now time.Time) error {
	var (
		name      x509.HostnameError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &name):
		return fmt.Errorf("the other server's certificate is not for %s", host)
	case errors.As(err, &authority):
		return errors.New("the other server's certificate is of no authority in --tls-client-ca")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		why, _ := outOfTime(invalid.Cert, now)
		return fmt.Errorf("the other server's certificate, or one above it, %s", why)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return errors.New("the other server's certificate is not one for servers")
	}
	return errors.New("the other server's certificate does not count")
}

// is reports whether the certificate is the principal's.
func (c *Certificate) is(p Principal) bool {
	if name, ok := strings.CutPrefix(string(p), dnsPrefix); ok {
		return c.err == nil && slices.Contains(c.dns, name)
	}
	return c.err == nil && !c.spiffe.IsZero() && c.spiffe.String() == string(p)
}
