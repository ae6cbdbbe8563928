package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// shake has a client with TLS of the test's connect to the kit's server, and returns what both saw.
func (k *kit) shake(config *tls.Config) (client, server error) {
	k.Helper()
	lis := bufconn.Listen(64 << 10)
	k.Cleanup(func() { _ = lis.Close() })
	done := make(chan error, 1)
	go func() {
		raw, err := lis.Accept()
		if err != nil {
			done <- err
			return
		}
		conn, _, err := k.TransportCredentials().ServerHandshake(raw)
		if err == nil {
			_, err = conn.Write([]byte("."))
		}
		_ = raw.Close()
		done <- err
	}()
	raw, err := lis.DialContext(context.Background())
	if err != nil {
		k.Fatal(err)
	}
	conn := tls.Client(raw, config)
	_, client = conn.Read(make([]byte, 1))
	_ = raw.Close()
	return client, <-done
}

// showing is the TLS of a client that shows a chain.
func (k *kit) showing(chain ...*signer) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(k.ca.PEM())
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: "localhost", RootCAs: roots, NextProtos: []string{"h2"}, Time: func() time.Time { return k.now },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			shown := &tls.Certificate{}
			for _, s := range chain {
				shown.Certificate, shown.PrivateKey = append(shown.Certificate, s.cert.Raw), chain[0].key
			}
			return shown, nil
		},
	}
}

// callerOf describes the certificate of a caller.
func callerOf(name string, change func(*x509.Certificate)) *x509.Certificate {
	return but(serverOf(name), func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		change(c)
	})
}

// A caller whose certificate has expired is told so by TLS. The log says whose it was, since when,
// and what to do, if an authority vouches for the name.
func TestCallersWhoseCertificateHasExpired(t *testing.T) {
	k := newKit(t)
	root := signed(t, nil, but(authorityOf("root"), lives(90*day)))
	old := signed(t, nil, but(authorityOf("old"), lives(time.Second)))
	between := signed(t, root, but(authorityOf("between"), lives(-time.Minute)))
	impostor := signed(t, nil, authorityOf("root"))
	over := func(c *x509.Certificate) { c.NotAfter = noon.Add(-time.Minute) }
	k.now = noon.Add(-time.Minute) // old is not over yet
	k.write("ca.pem", append(root.pem(), old.pem()...))
	k.settle()
	k.now = noon.Add(2 * time.Second)
	for name, test := range map[string]struct {
		chain   []*signer
		alert   string
		problem []string
	}{
		"expired": {[]*signer{signed(t, root, callerOf(payments, over))}, "expired certificate",
			[]string{"the certificate of " + payments + " expired at 2026-11-30T11:59:00Z", "needs a new one"}},
		"a DNS name": {[]*signer{signed(t, root, callerOf("pay.example.org", over))}, "expired certificate",
			[]string{"the certificate of dns:pay.example.org expired at 2026-11-30T11:59:00Z"}},
		"by one between that is over": {[]*signer{signed(t, between, callerOf(payments, lives(day))), between}, "expired certificate",
			[]string{"a certificate above that of " + payments + " expired at 2026-11-30T11:59:00Z"}},
		"by an authority that is over": {[]*signer{signed(t, old, callerOf(payments, lives(day)))}, "expired certificate",
			[]string{"a certificate above that of " + payments + " expired at 2026-11-30T12:00:01Z"}},
		"not valid yet": {[]*signer{signed(t, root, callerOf(payments, func(c *x509.Certificate) { c.NotBefore = noon.Add(time.Minute) }))}, "expired certificate",
			[]string{"the certificate of " + payments + " is not valid before 2026-11-30T12:01:00Z", "clock"}},
		"a long name": {[]*signer{signed(t, root, callerOf("spiffe://example.org/"+strings.Repeat("x", 1000), over))}, "expired certificate",
			[]string{"expired at"}},
		"of no authority": {[]*signer{signed(t, impostor, callerOf("spiffe://example.org/s3cret", over))}, "expired certificate",
			[]string{"no authority", "expired at 2026-11-30T11:59:00Z"}},
		"of itself": {[]*signer{signed(t, nil, callerOf("spiffe://example.org/s3cret", over))}, "expired certificate",
			[]string{"no authority"}},
		"good": {[]*signer{signed(t, root, callerOf(payments, lives(day)))}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			k.said.anybodys.Store(0)
			k.said.vouched.Store(0)
			k.log.Reset()
			client, server := k.shake(k.showing(test.chain...))
			if test.alert == "" {
				if client != nil || server != nil || k.log.Len() > 0 {
					t.Errorf("%v, %v\n%s", client, server, &k.log)
				}
				return
			}
			if server == nil || client == nil || !strings.Contains(client.Error(), test.alert) {
				t.Errorf("the client sees %v, the server %v", client, server)
			}
			text := k.log.String()
			for _, want := range append(test.problem, "handshake failed") {
				if !strings.Contains(text, want) {
					t.Errorf("the log lacks %q: %s", want, text)
				}
			}
			if strings.Contains(text, "s3cret") || len(text) > 600 {
				t.Errorf("the log has what a stranger wrote: %s", text)
			}
		})
	}
}

// Strangers fill no log, nor do they keep out of it that the certificate of somebody has expired
// whom an authority vouches for.
func TestStrangersWithExpiredCertificates(t *testing.T) {
	k := newKit(t)
	root, impostor := signed(t, nil, authorityOf("root")), signed(t, nil, authorityOf("root"))
	k.write("ca.pem", root.pem())
	k.settle()
	k.log.Reset()
	over := func(c *x509.Certificate) { c.NotAfter = noon.Add(-time.Minute) }
	stranger := signed(t, impostor, callerOf(payments, over))
	caller := signed(t, root, callerOf(payments, over))
	for range 5 {
		for _, who := range []*signer{stranger, caller} {
			_, _ = k.shake(k.showing(who))
		}
	}
	if lines := strings.Count(k.log.String(), "\n"); lines != 2 || strings.Count(k.log.String(), "the certificate of "+payments) != 1 {
		t.Errorf("%d lines:\n%s", lines, &k.log)
	}
}

// A client that does not take this server's certificate says no more than that. The log says what
// it is about.
func TestClientsThatRefuseTheServersCertificate(t *testing.T) {
	k := newKit(t)
	config := k.showing()
	config.RootCAs = x509.NewCertPool()
	if client, server := k.shake(config); client == nil || server == nil || !strings.Contains(k.log.String(), "the client refuses the certificate of this server") {
		t.Errorf("%v, %v\n%s", client, server, &k.log)
	}
	k.log.Reset()
	k.now = noon.Add(2 * time.Hour)
	if client, _ := k.shake(k.showing()); client == nil || !strings.Contains(k.log.String(), "the certificate of this server in --tls-cert expired at 2026-11-30T13:00:00Z") {
		t.Errorf("%v\n%s", client, &k.log)
	}
}
