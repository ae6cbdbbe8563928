package server

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/server/identity/devca"
)

// When certificates expire is a metric of each file, also of a file that was read again, and what
// soon expires /healthz says.
func TestCertificatesThatWillExpire(t *testing.T) {
	s := newSecured(t)
	ends := func(file string) float64 {
		t.Helper()
		text, err := os.ReadFile(s.path(file))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return float64(cert.NotAfter.Unix())
	}
	check := func() {
		t.Helper()
		got := s.samples("idemd_tls_certificate_expiry_seconds")
		if len(got) != 2 || got["file=tls-cert"] != ends("server.pem") || got["file=tls-client-ca"] != ends("ca.pem") {
			t.Errorf("%v, want %v and %v", got, ends("server.pem"), ends("ca.pem"))
		}
	}
	check()
	if _, body := s.healthz(); body.Notice != "" {
		t.Errorf("nothing expires, and there is a notice: %q", body.Notice)
	}
	pair := s.issue(s.ca, devca.Leaf{DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, NotAfter: time.Now().Add(5 * time.Minute)})
	s.write("server-key.pem", string(pair.Key))
	s.change("server.pem", string(pair.Cert))
	check()
	if code, body := s.healthz(); code != http.StatusOK || !strings.Contains(body.Notice, "the certificate of this server in --tls-cert expires at ") {
		t.Errorf("%d, %+v", code, body)
	}
}
