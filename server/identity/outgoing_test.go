package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
)

// signer is a certificate, of an authority or not, and its key.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// signed is one whose certificate a template describes; its own authority's if by is nil.
func signed(t *testing.T, by *signer, template *x509.Certificate) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	s := &signer{template, key}
	if by == nil {
		by = s
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	if s.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *signer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

// authorityOf describes an authority's certificate.
func authorityOf(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

// serverOf describes the certificate of a server with such names: URIs, addresses and DNS names.
func serverOf(names ...string) *x509.Certificate {
	c := &x509.Certificate{
		NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if uri, err := url.Parse(name); err == nil && uri.Scheme != "" {
			c.URIs = append(c.URIs, uri)
		} else if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return c
}

// but changes a template.
func but(c *x509.Certificate, change func(*x509.Certificate)) *x509.Certificate {
	change(c)
	return c
}

// other is a server that shows a chain of certificates, and what it saw of whoever called it.
type other struct {
	config *tls.Config
	seen   chan *x509.Certificate
}

func newOther(chain ...*signer) *other {
	shown := tls.Certificate{PrivateKey: chain[0].key}
	for _, s := range chain {
		shown.Certificate = append(shown.Certificate, s.cert.Raw)
	}
	return &other{
		&tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{shown}, NextProtos: []string{"h2"},
			ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		},
		make(chan *x509.Certificate, 1),
	}
}

// handshake has it called at an address. It echoes what it is sent, until the test ends.
func (o *other) handshake(t *testing.T, c credentials.TransportCredentials, address string) (net.Conn, error) {
	t.Helper()
	lis := bufconn.Listen(64 << 10)
	go func() {
		far, err := lis.Accept()
		if err != nil {
			return
		}
		defer far.Close()
		conn := tls.Server(far, o.config)
		if conn.Handshake() != nil {
			return
		}
		o.seen <- conn.ConnectionState().PeerCertificates[0]
		_, _ = io.Copy(conn, conn)
	}()
	raw, err := lis.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = raw.Close(), lis.Close() })
	conn, _, err := c.ClientHandshake(context.Background(), address, raw)
	return conn, err
}

const (
	euPrincipal = "spiffe://example.org/idemd/eu"
	euDNS       = "dns:eu.example.org"
	euAddress   = "eu.example.org:7600"
)

// Whom a server takes another one for: by the principal that the topology names or, without, by
// the host that it calls. What it says of one that it refuses shows nothing of that one's
// certificate.
func TestWhoAnotherServerIs(t *testing.T) {
	root := signed(t, nil, authorityOf("root"))
	between := signed(t, root, authorityOf("between"))
	overBetween := signed(t, root, but(authorityOf("s3cret-over"), func(c *x509.Certificate) { c.NotAfter = noon.Add(-time.Minute) }))
	impostor := signed(t, nil, authorityOf("root"))
	leaf := func(names ...string) []*signer { return []*signer{signed(t, root, serverOf(names...))} }
	leafBut := func(change func(*x509.Certificate), names ...string) []*signer {
		return []*signer{signed(t, root, but(serverOf(names...), change))}
	}
	named := func(c *x509.Certificate) { c.Subject.CommonName = "eu.example.org" }

	for name, test := range map[string]struct {
		principal, address string
		chain              []*signer
		problem            string // empty: it is taken for who it must be
	}{
		"the principal":                      {euPrincipal, euAddress, leaf(euPrincipal), ""},
		"the principal, at another address":  {euPrincipal, "192.0.2.1:7600", leaf(euPrincipal), ""},
		"another region":                     {euPrincipal, euAddress, leaf("spiffe://example.org/idemd/s3cret"), "is not " + euPrincipal},
		"a longer path":                      {euPrincipal, euAddress, leaf(euPrincipal + "/s3cret"), "is not " + euPrincipal},
		"another trust domain":               {euPrincipal, euAddress, leaf("spiffe://s3cret.example.com/idemd/eu"), "is not " + euPrincipal},
		"no URI":                             {euPrincipal, euAddress, leaf("eu.example.org"), "is not " + euPrincipal},
		"two URIs":                           {euPrincipal, euAddress, leaf(euPrincipal, "spiffe://example.org/s3cret"), "is not " + euPrincipal},
		"a URI that is none of SPIFFE":       {euPrincipal, euAddress, leaf("https://example.org/s3cret"), "is not " + euPrincipal},
		"an authority's own":                 {euPrincipal, euAddress, leafBut(func(c *x509.Certificate) { c.IsCA = true }, euPrincipal), "is not " + euPrincipal},
		"a DNS name":                         {euDNS, euAddress, leaf("eu.example.org"), ""},
		"a DNS name of several":              {euDNS, euAddress, leaf("s3cret.example.org", "eu.example.org"), ""},
		"a DNS name in capitals":             {euDNS, euAddress, leaf("EU.Example.org"), ""},
		"another DNS name":                   {euDNS, euAddress, leaf("s3cret.example.org"), "is not " + euDNS},
		"a wildcard for a principal":         {euDNS, euAddress, leaf("*.example.org"), "is not " + euDNS},
		"a common name for a principal":      {euDNS, euAddress, leafBut(named), "is not " + euDNS},
		"a DNS name beside a URI":            {euDNS, euAddress, leaf("eu.example.org", "spiffe://example.org/s3cret"), "is not " + euDNS},
		"the host":                           {"", euAddress, leaf("s3cret.example.org", "eu.example.org"), ""},
		"the host, without a port":           {"", "eu.example.org", leaf("eu.example.org"), ""},
		"the host, by a wildcard":            {"", euAddress, leaf("*.example.org"), ""},
		"another host":                       {"", euAddress, leaf("s3cret.example.org"), "is not for eu.example.org"},
		"a common name for a host":           {"", euAddress, leafBut(named), "is not for eu.example.org"},
		"a principal for a host":             {"", euAddress, leaf(euPrincipal), "is not for eu.example.org"},
		"an IPv4 address":                    {"", "192.0.2.1:7600", leaf("192.0.2.1"), ""},
		"another IPv4 address":               {"", "192.0.2.1:7600", leaf("192.0.2.99"), "is not for 192.0.2.1"},
		"an IPv4 address that is a DNS name": {"", "192.0.2.1:7600", leafBut(func(c *x509.Certificate) { c.DNSNames = []string{"192.0.2.1"} }), "is not for 192.0.2.1"},
		"an IPv6 address":                    {"", "[2001:db8::1]:7600", leaf("2001:db8::1"), ""},
		"an IPv6 address without a port":     {"", "[2001:db8::1]", leaf("2001:db8::1"), ""},
		"another IPv6 address":               {"", "[2001:db8::1]:7600", leaf("2001:db8::99"), "is not for 2001:db8::1"},
		"for a client only": {euPrincipal, euAddress, leafBut(func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}, euPrincipal), "not one for servers"},
		"expired":                       {euPrincipal, euAddress, leafBut(func(c *x509.Certificate) { c.NotAfter = noon.Add(-time.Second) }, euPrincipal), "expired at 2026-11-30T11:59:59Z"},
		"not valid yet":                 {euPrincipal, euAddress, leafBut(func(c *x509.Certificate) { c.NotBefore = noon.Add(time.Second) }, euPrincipal), "is not valid before 2026-11-30T12:00:01Z"},
		"of another authority":          {euPrincipal, euAddress, []*signer{signed(t, impostor, serverOf(euPrincipal))}, "of no authority"},
		"of itself":                     {euPrincipal, euAddress, []*signer{signed(t, nil, serverOf(euPrincipal))}, "of no authority"},
		"by one between":                {euPrincipal, euAddress, []*signer{signed(t, between, serverOf(euPrincipal)), between}, ""},
		"by one between, not shown":     {euPrincipal, euAddress, []*signer{signed(t, between, serverOf(euPrincipal))}, "of no authority"},
		"by one between that is over":   {euPrincipal, euAddress, []*signer{signed(t, overBetween, serverOf(euPrincipal)), overBetween}, "expired at 2026-11-30T11:59:00Z"},
		"the good one only shown above": {euPrincipal, euAddress, append([]*signer{signed(t, impostor, serverOf(euPrincipal))}, leaf(euPrincipal)...), "of no authority"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t)
			k.write("ca.pem", root.pem())
			k.settle()
			own := k.PeerCredentials(test.principal)
			for kind, c := range map[string]credentials.TransportCredentials{"itself": own, "a clone": own.Clone()} {
				o := newOther(test.chain...)
				o.config.Time = func() time.Time { return noon }
				_, err := o.handshake(t, c, test.address)
				switch {
				case test.problem == "" && err != nil:
					t.Errorf("%s: %v", kind, err)
				case test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)):
					t.Errorf("%s: %v, want %q", kind, err, test.problem)
				case err != nil && strings.Contains(err.Error(), "s3cret"):
					t.Errorf("%s: it shows what is in the certificate: %v", kind, err)
				}
			}
		})
	}
}

// What a server shows, and by what it verifies, are the files as they are when it connects. A
// connection that is there goes on.
func TestFilesOfAServerThatCallsAnother(t *testing.T) {
	k := newKit(t)
	first, second := signed(t, nil, authorityOf("first")), signed(t, nil, authorityOf("second"))
	k.write("ca.pem", first.pem())
	k.settle()
	c := k.PeerCredentials(euPrincipal)
	ofFirst, ofSecond := newOther(signed(t, first, serverOf(euPrincipal))), newOther(signed(t, second, serverOf(euPrincipal)))
	for _, o := range []*other{ofFirst, ofSecond} {
		o.config.Time = func() time.Time { return noon }
	}
	conn, err := ofFirst.handshake(t, c, euAddress)
	if err != nil {
		t.Fatal(err)
	}
	shown := <-ofFirst.seen
	if _, err := ofSecond.handshake(t, c, euAddress); err == nil {
		t.Error("another authority counts before the file says so")
	}

	k.write("ca.pem", second.pem())
	k.serverCert(noon.Add(2 * time.Hour))
	k.settle()
	echo := make([]byte, 5)
	go func() { _, _ = io.WriteString(conn, "hello") }()
	if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "hello" {
		t.Errorf("on the connection that was there: %q, %v", echo, err)
	}
	if _, err := ofFirst.handshake(t, c, euAddress); err == nil {
		t.Error("an authority counts that was taken out")
	}
	if _, err := ofSecond.handshake(t, c.Clone(), euAddress); err != nil {
		t.Fatal(err)
	}
	if now := <-ofSecond.seen; slices.Equal(now.Raw, shown.Raw) {
		t.Error("the certificate that was replaced is shown")
	}
}

func TestAnotherServerSpeaksTLS13(t *testing.T) {
	k := newKit(t)
	root := signed(t, nil, authorityOf("root"))
	k.write("ca.pem", root.pem())
	k.settle()
	for version, good := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		o := newOther(signed(t, root, serverOf(euPrincipal)))
		o.config.Time = func() time.Time { return noon }
		o.config.MaxVersion = version
		if _, err := o.handshake(t, k.PeerCredentials(euPrincipal), euAddress); good != (err == nil) {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
	}
}

// Without authorities nobody can be verified, and so nobody is called.
func TestCallingWithoutAuthorities(t *testing.T) {
	k := newKit(t)
	a, err := Load(Options{TLSCert: k.path("server.pem"), TLSKey: k.path("server-key.pem"), Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	if a.Verifies() || !k.Verifies() || (*Authority)(nil).Verifies() {
		t.Error("it is wrong about whether it verifies")
	}
	root := signed(t, nil, authorityOf("root"))
	for _, principal := range []string{"", euPrincipal} {
		_, err := newOther(signed(t, root, serverOf(euPrincipal, "eu.example.org"))).handshake(t, a.PeerCredentials(principal), euAddress)
		if err == nil || !strings.Contains(err.Error(), "--tls-client-ca") {
			t.Errorf("as %q: %v", principal, err)
		}
	}
}
