package client_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store"
)

// Of a certificate that has expired a client says whose it is, since when, and what to do: its own,
// of which the server tells it no more than that it does not take it, and the server's.
func TestCertificatesThatHaveExpired(t *testing.T) {
	from, over, to := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	ca, err := devca.New("test", from, to)
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(ca.PEM())
	until := func(leaf devca.Leaf, end time.Time) devca.Pair {
		t.Helper()
		leaf.NotBefore, leaf.NotAfter = from, end
		pair, err := ca.Issue(leaf)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	for name, test := range map[string]struct {
		server, own time.Time
		want        []string
	}{
		"the client's": {to, over, []string{"cert.pem", "expired at " + over.UTC().Format(time.RFC3339), "new one"}},
		"the server's": {over, to, []string{"the server's certificate", "expired at " + over.UTC().Format(time.RFC3339), "server needs a new one"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := func(name string) string { return filepath.Join(dir, name) }
			own := until(devca.Leaf{DNS: []string{"caller"}, Client: true}, test.own)
			for name, content := range map[string][]byte{"ca.pem": ca.PEM(), "cert.pem": own.Cert, "key.pem": own.Key} {
				if err := os.WriteFile(path(name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			shown := until(devca.Leaf{DNS: []string{"localhost"}, Server: true}, test.server)
			pair, err := tls.X509KeyPair(shown.Cert, shown.Key)
			if err != nil {
				t.Fatal(err)
			}
			pipe := serveDoorman(t, &doorman{}, grpc.Creds(credentials.NewTLS(&tls.Config{
				Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: authorities, MinVersion: tls.VersionTLS13,
			})))
			files, err := client.TLSFiles(path("ca.pem"), path("cert.pem"), path("key.pem"))
			if err != nil {
				t.Fatal(err)
			}
			c, err := client.Dial("localhost:7600", pipe, files)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Lookup(t.Context(), store.LookupRequest{Key: store.Key{Namespace: "default", ID: "a"}})
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it lacks %q: %v", want, err)
				}
			}
		})
	}
}
