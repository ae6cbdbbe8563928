package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// A home is told by the name in its certificate: an address that a server tells is not to be
// believed by itself. Tokens go to where the name is right.
func TestHomesProveTheirNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		w.at("us", "192.0.2.3:7600")
		w.at("ap", "192.0.2.4:7600")
		roots := x509.NewCertPool()
		for name, ip := range map[string]string{"eu": "127.0.0.2", "us": "192.0.2.3", "ap": "192.0.2.3"} {
			w.regions[name].options = []grpc.ServerOption{grpc.Creds(serverNamed(t, ip, roots))}
		}
		w.dial("127.0.0.2:7600",
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})),
			BearerToken(func() string { return "secret" }))
		defer w.client.Close()

		w.learnt("us", "ap")
		w.claims("us", "us", "ap", "ap")
		w.were("asked", map[string]tally{"us": {own: 2}, "eu": {forwarded: 2}})
		w.with(func() {
			if got := w.regions["us"].tokens; !slices.Contains(got, "Bearer secret") {
				t.Errorf("us was brought %q", got)
			}
			if got := w.regions["ap"].tokens; len(got) > 0 || w.dialled["192.0.2.4:7600"] == 0 {
				t.Errorf("who pretends to be ap was tried %d times and brought %q", w.dialled["192.0.2.4:7600"], got)
			}
		})
	})
}

// serverNamed makes the credentials of a server with a certificate for an address.
func serverNamed(t *testing.T, ip string, roots *x509.CertPool) credentials.TransportCredentials {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(ip)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	return credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
}
