package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store"
)

// doorman notes what a client shows, and refuses everything.
type doorman struct {
	pb.UnimplementedIdempotencyServiceServer
	mu     sync.Mutex
	tokens []string
	names  []string // of certificates
}

func (d *doorman) Lookup(ctx context.Context, _ *pb.LookupRequest) (*pb.LookupResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens = metadata.ValueFromIncomingContext(ctx, "authorization")
	d.names = nil
	if from, ok := peer.FromContext(ctx); ok {
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			d.names = info.State.PeerCertificates[0].DNSNames
		}
	}
	return nil, status.Error(codes.NotFound, "nothing")
}

// serveDoorman serves until the test ends, and returns how its pipe is dialled.
func serveDoorman(t *testing.T, d *doorman, opts ...grpc.ServerOption) grpc.DialOption {
	t.Helper()
	lis := bufconn.Listen(1 << 16)
	s := grpc.NewServer(opts...)
	pb.RegisterIdempotencyServiceServer(s, d)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// lookUp dials and asks once.
func lookUp(t *testing.T, addr string, opts ...grpc.DialOption) error {
	t.Helper()
	c, err := client.Dial(addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Lookup(t.Context(), store.LookupRequest{Key: store.Key{Namespace: "default", ID: "a"}})
	return err
}

func TestBearerTokenStaysOnThisMachineInPlainText(t *testing.T) {
	d := &doorman{}
	pipe := serveDoorman(t, d)
	token := client.BearerToken(func() string { return "secret-1" })
	for _, addr := range []string{"127.0.0.1:7600", "localhost:7600", "[::1]:7600"} {
		if _ = lookUp(t, addr, pipe, token); len(d.tokens) != 1 || d.tokens[0] != "Bearer secret-1" {
			t.Errorf("%s got %q", addr, d.tokens)
		}
		d.tokens = nil
	}
	for _, addr := range []string{"passthrough:///192.0.2.1:7600", "passthrough:///idemd.example.com:443"} {
		err := lookUp(t, addr, pipe, token, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if !errors.Is(err, store.ErrUnauthenticated) || !strings.Contains(err.Error(), "plain text") || strings.Contains(err.Error(), "secret-1") || d.tokens != nil {
			t.Errorf("%s: %v, got %q", addr, err, d.tokens)
		}
	}
	none := client.BearerToken(func() string { return "" })
	if err := lookUp(t, "127.0.0.1:7600", pipe, none); !errors.Is(err, store.ErrUnauthenticated) || d.tokens != nil {
		t.Errorf("without a token: %v, got %q", err, d.tokens)
	}
}

// Files are read for every connection.
func TestTLSFiles(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	newCA := func() *devca.CA {
		ca, err := devca.New("test", from, to)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ca := newCA()
	issue := func(leaf devca.Leaf) devca.Pair {
		t.Helper()
		leaf.NotBefore, leaf.NotAfter = from, to
		pair, err := ca.Issue(leaf)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	own := func(name string) {
		pair := issue(devca.Leaf{DNS: []string{name}, Client: true})
		write("cert.pem", pair.Cert)
		write("key.pem", pair.Key)
	}
	write("ca.pem", ca.PEM())
	own("first")
	serverPair := issue(devca.Leaf{DNS: []string{"localhost"}, Server: true})
	cert, err := tls.X509KeyPair(serverPair.Cert, serverPair.Key)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca.PEM())
	d := &doorman{}
	pipe := serveDoorman(t, d, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients, MinVersion: tls.VersionTLS13,
	})))
	files, err := client.TLSFiles(path("ca.pem"), path("cert.pem"), path("key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	name := func(want string) {
		t.Helper()
		if err := lookUp(t, "localhost:7600", pipe, files, client.BearerToken(func() string { return "secret" })); errors.Is(err, store.ErrUnavailable) || len(d.names) != 1 || d.names[0] != want || len(d.tokens) != 1 {
			t.Errorf("%v, shown %q and %q, want %s", err, d.names, d.tokens, want)
		}
	}
	name("first")
	own("second")
	name("second")
	write("ca.pem", newCA().PEM())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := client.Dial("localhost:7600", pipe, files)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d.names = nil
	if _, err := c.Lookup(ctx, store.LookupRequest{Key: store.Key{Namespace: "default", ID: "a"}}); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "x509") || d.names != nil {
		t.Errorf("a server of another authority: %v", err)
	}

	for want, of := range map[string][3]string{
		"go together": {path("ca.pem"), path("cert.pem"), ""}, "no certificate": {path("key.pem"), "", ""}, "no such file": {path("none"), "", ""}, "cert.pem": {path("ca.pem"), path("cert.pem"), path("ca.pem")},
	} {
		if _, err := client.TLSFiles(of[0], of[1], of[2]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", of, err)
		}
	}
}
