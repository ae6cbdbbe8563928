package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// BearerToken is an option of [Dial] by which every call, and every session when it is opened,
// brings a token along. It is asked for each time, so that it may be replaced: what a session was
// opened with counts until it ends. It is not sent in plain text to another machine: the call
// fails before that.
func BearerToken(token func() string) grpc.DialOption {
	return grpc.WithPerRPCCredentials(bearer(token))
}

type bearer func() string

// errNoToken and errPlainText are of calls of which nothing was sent.
var (
	errNoToken   = errors.New("there is no bearer token to send")
	errPlainText = errors.New("a bearer token is not sent in plain text to another machine; use TLS")
)

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (b bearer) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	request, _ := credentials.RequestInfoFromContext(ctx)
	if credentials.CheckSecurityLevel(request.AuthInfo, credentials.PrivacyAndIntegrity) != nil && !areLoopback(uri) {
		return nil, errPlainText
	}
	token := b()
	if token == "" {
		return nil, errNoToken
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials]. GetRequestMetadata looks
// itself, since this machine needs none.
func (bearer) RequireTransportSecurity() bool { return false }

// areLoopback reports whether services are on this machine.
func areLoopback(uris []string) bool {
	for _, uri := range uris {
		service, err := url.Parse(uri)
		if err != nil || !isLoopbackHost(service.Hostname()) {
			return false
		}
	}
	return len(uris) > 0
}

// TLSFiles returns an option of [Dial] for TLS by files, in PEM: the authorities that a server's
// certificate must come from (empty: those of the system), and a certificate of one's own with
// its key (both empty: none). They are read for every connection, so that they may be replaced.
func TLSFiles(ca, cert, key string) (grpc.DialOption, error) {
	if (cert == "") != (key == "") {
		return nil, errors.New("a certificate and its key go together")
	}
	files := tlsFiles{ca, cert, key}
	if _, err := files.config(); err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(files), nil
}

// tlsFiles are credentials that are read anew for every connection.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	if f.ca != "" {
		authorities, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(authorities) {
			return nil, fmt.Errorf("%s holds no certificate", f.ca)
		}
	}
	if f.cert == "" {
		return c, nil
	}
	own, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", f.cert, f.key, err)
	}
	c.Certificates = []tls.Certificate{own}
	return c, nil
}

// ClientHandshake implements [credentials.TransportCredentials].
func (f tlsFiles) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := f.config()
	if err != nil {
		return nil, nil, err
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	if err != nil {
		return nil, nil, ofServer(err)
	}
	if f.cert != "" {
		conn = &shown{conn, f.cert, config.Certificates[0].Leaf}
	}
	return conn, info, nil
}

// ServerHandshake implements [credentials.TransportCredentials].
func (tlsFiles) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are a client's credentials")
}

// Info implements [credentials.TransportCredentials].
func (tlsFiles) Info() credentials.ProtocolInfo { return credentials.NewTLS(nil).Info() }

// Clone implements [credentials.TransportCredentials].
func (f tlsFiles) Clone() credentials.TransportCredentials { return f }

// OverrideServerName implements [credentials.TransportCredentials]. grpc.WithAuthority is there
// for that.
func (tlsFiles) OverrideServerName(string) error { return errors.New("use grpc.WithAuthority") }
