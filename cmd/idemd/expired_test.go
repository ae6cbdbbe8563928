package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/server/identity/devca"
)

// Whose certificate has expired, and since when, both sides say: the command that shows it, and the
// server's log.
func TestACallerWhoseCertificateHasExpired(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	from, over, to := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	ca, err := devca.New("test", from, to)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file("ca.pem"), string(ca.PEM()))
	write(t, file("policy.yaml"), "grants:\n  - {principal: \"spiffe://example.org/payments\", role: caller, namespaces: [default]}\n")
	for name, leaf := range map[string]devca.Leaf{
		"server": {IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, NotAfter: to},
		"caller": {URIs: []string{"spiffe://example.org/payments"}, Client: true, NotAfter: over},
	} {
		leaf.NotBefore = from
		pair, err := ca.Issue(leaf)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file(name+".pem"), string(pair.Cert))
		write(t, file(name+"-key.pem"), string(pair.Key))
	}
	s := serveOn(t, "--tls-cert="+file("server.pem"), "--tls-key="+file("server-key.pem"), "--tls-client-ca="+file("ca.pem"), "--policy="+file("policy.yaml"), "--data-dir="+t.TempDir())
	for range 10 { // what of it arrives when the connection ends differs
		run(t, "claim", "--id=a", "--addr="+s.addr, "--ca="+file("ca.pem"), "--cert="+file("caller.pem"), "--key="+file("caller-key.pem")).
			fails(t, exitNoAnswer, "TLS: the certificate in "+file("caller.pem")+" expired at "+over.UTC().Format(time.RFC3339), "new one")
	}
	if log := s.stderr.String(); !strings.Contains(log, "the certificate of spiffe://example.org/payments expired at "+over.UTC().Format(time.RFC3339)) {
		t.Error(log)
	}
}
