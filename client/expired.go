package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// ofServer says more of a handshake that failed because the server's certificate has expired.
func ofServer(err error) error {
	var (
		refused *tls.CertificateVerificationError
		invalid x509.CertificateInvalidError
	)
	if !errors.As(err, &refused) || !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		return err
	}
	if from := invalid.Cert.NotBefore; time.Now().Before(from) {
		return fmt.Errorf("the server's certificate, or one above it, is not valid before %s: is the clock of this machine right? (%w)", from.UTC().Format(time.RFC3339), err)
	}
	return fmt.Errorf("the server's certificate, or one above it, expired at %s: the server needs a new one (%w)", invalid.Cert.NotAfter.UTC().Format(time.RFC3339), err)
}

// shown is a connection on which a certificate of one's own was shown. That the server does not take
// it comes after the handshake in TLS 1.3, and as no more than an alert, or the connection ends.
type shown struct {
	net.Conn
	file string
	cert *x509.Certificate
}

// Read implements [net.Conn].
func (s *shown) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	return n, s.refused(err)
}

// Write implements [net.Conn].
func (s *shown) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	return n, s.refused(err)
}

// refused says more of an error that is, or may be, about the certificate.
func (s *shown) refused(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // readers compare it
		return err
	}
	var alert *net.OpError
	until := s.cert.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case !time.Now().Before(s.cert.NotAfter):
		return fmt.Errorf("%w: the certificate in %s expired at %s: put a new one in its place, it is read for every connection", err, s.file, until)
	case errors.As(err, &alert) && alert.Op == "remote error" && strings.Contains(err.Error(), "certificate"):
		return fmt.Errorf("%w: the certificate in %s, which is valid until %s, or one above it, is not taken by the server", err, s.file, until)
	}
	return err
}
