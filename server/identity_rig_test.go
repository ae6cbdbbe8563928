package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store"
)

// The principals of the tests, and what they may do.
const (
	paymentsCaller   = "spiffe://example.org/payments"
	paymentsOperator = "spiffe://example.org/payments-operator"
	otherTenant      = "spiffe://example.org/other" // everything in a namespace of its own
	everyCaller      = "dns:every.example.org"
	operatorToken    = "token:ops"
	region           = "spiffe://example.org/region/eu"
	stranger         = "spiffe://example.org/stranger" // nothing

	testPolicy = `grants:
  - {principal: "spiffe://example.org/payments", role: caller, namespaces: [payments]}
  - {principal: "spiffe://example.org/payments-operator", role: operator, namespaces: [payments]}
  - {principal: "spiffe://example.org/other", role: caller, namespaces: [other]}
  - {principal: "spiffe://example.org/other", role: operator, namespaces: [other]}
  - {principal: "dns:every.example.org", role: caller, namespaces: ["*"]}
  - {principal: "token:ops", role: operator, namespaces: ["*"]}
  - {principal: "token:claims", role: caller, namespaces: [payments]}
  - {principal: "spiffe://example.org/region/eu", role: peer}
`
)

// secured is a server with TLS, tokens and a policy over the namespaces payments and other.
type secured struct {
	*rig
	authority *identity.Authority
	ca        *devca.CA
	dir       string
	ahead     atomic.Int64 // of the clock of identity
	token     string       // of token:ops
	tokenLine string
}

func newSecured(t testing.TB) *secured {
	t.Helper()
	backend := newMemory()
	for _, name := range []string{"payments", "other"} {
		if _, err := backend.CreateNamespace(t.Context(), store.Namespace{Name: name}.WithDefaults()); err != nil {
			t.Fatal(err)
		}
	}
	s := &secured{rig: &rig{TB: t}, dir: t.TempDir()}
	s.ca = s.newCA()
	pair := s.issue(s.ca, devca.Leaf{DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	var err error
	if s.token, s.tokenLine, err = identity.NewToken("ops", time.Time{}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"server.pem": string(pair.Cert), "server-key.pem": string(pair.Key), "ca.pem": string(s.ca.PEM()),
		"tokens": s.tokenLine, "policy.yaml": testPolicy,
	} {
		s.write(name, content)
	}
	log := &logBuffer{}
	s.authority, err = identity.Load(identity.Options{
		TLSCert: s.path("server.pem"), TLSKey: s.path("server-key.pem"), TLSClientCA: s.path("ca.pem"), TrustDomains: []string{"example.org"},
		Tokens: s.path("tokens"), Policy: s.path("policy.yaml"), Logger: slog.New(slog.NewTextHandler(log, nil)),
		Now: func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.rig = newRigOf(t, Config{Backend: backend, Identity: s.authority}, servePeers)
	return s
}

// servePeers lets a server without regions have the methods of peers as well.
func servePeers(s *Server) {
	if _, ok := s.grpc.GetServiceInfo()[pb.PeerService_ServiceDesc.ServiceName]; !ok {
		s.grpc.RegisterService(s.calls.reading(pb.PeerService_ServiceDesc), pb.UnimplementedPeerServiceServer{})
	}
}

func (s *secured) path(name string) string { return filepath.Join(s.dir, name) }

func (s *secured) write(name, content string) {
	s.Helper()
	if err := os.WriteFile(s.path(name), []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

// change writes a file and has it read.
func (s *secured) change(name, content string) {
	s.Helper()
	s.write(name, content)
	s.authority.Poll()
	s.authority.Poll()
}

func (s *secured) newCA() *devca.CA {
	s.Helper()
	ca, err := devca.New("test", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		s.Fatal(err)
	}
	return ca
}

// issue makes a certificate, valid for an hour if nothing is said.
func (s *secured) issue(ca *devca.CA, leaf devca.Leaf) devca.Pair {
	s.Helper()
	leaf.NotBefore = time.Now().Add(-time.Hour)
	if leaf.NotAfter.IsZero() {
		leaf.NotAfter = time.Now().Add(time.Hour)
	}
	pair, err := ca.Issue(leaf)
	if err != nil {
		s.Fatal(err)
	}
	return pair
}

// tls is TLS to the server with a certificate; without if it is nil.
func (s *secured) tls(own *devca.Pair) *tls.Config {
	s.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost", MinVersion: tls.VersionTLS13}
	c.RootCAs.AppendCertsFromPEM(s.ca.PEM())
	if own != nil {
		pair, err := tls.X509KeyPair(own.Cert, own.Key)
		if err != nil {
			s.Fatal(err)
		}
		// It is shown also to a server that asks for those of other authorities.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// dial makes a connection with a certificate, or none, and further options.
func (s *secured) dial(own *devca.Pair, opts ...grpc.DialOption) *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("passthrough:///localhost:7600", append(s.toTheRig(own), opts...)...)
	if err != nil {
		s.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, conn)
	return conn
}

// dialConfig makes a connection with TLS of the test's.
func (s *secured) dialConfig(config *tls.Config) *grpc.ClientConn {
	s.Helper()
	return s.dial(nil, grpc.WithTransportCredentials(credentials.NewTLS(config)))
}

func (s *secured) toTheRig(own *devca.Pair) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(s.tls(own))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }),
	}
}

// as makes a connection of a principal; without one if it is empty.
func (s *secured) as(principal string) *grpc.ClientConn {
	s.Helper()
	switch principal {
	case "":
		return s.dial(nil)
	case operatorToken:
		return s.dial(nil, client.BearerToken(func() string { return s.token }))
	}
	return s.dial(s.certOf(principal))
}

func (s *secured) certOf(principal string) *devca.Pair {
	s.Helper()
	leaf := devca.Leaf{Client: true}
	if name, isDNS := cutDNS(principal); isDNS {
		leaf.DNS = []string{name}
	} else {
		leaf.URIs = []string{principal}
	}
	pair := s.issue(s.ca, leaf)
	return &pair
}

func cutDNS(principal string) (string, bool) {
	const prefix = "dns:"
	if len(principal) > len(prefix) && principal[:len(prefix)] == prefix {
		return principal[len(prefix):], true
	}
	return "", false
}
