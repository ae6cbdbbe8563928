package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// handshakeQuiet is how often at most a failed handshake is logged: anybody can cause them.
const handshakeQuiet = time.Second

// handshakes is when the log has said last, in nanoseconds, that one failed: anybody's, and one of
// somebody for whom an authority vouches, whom strangers do not keep out of the log.
type handshakes struct{ anybodys, vouched atomic.Int64 }

// handshakeFailed tells an operator why a client gets no connection.
func (a *Authority) handshakeFailed(raw net.Conn, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	problem, vouched := a.problemOf(err)
	said := &a.said.anybodys
	if vouched {
		said = &a.said.vouched
	}
	now := a.now().UnixNano()
	last := said.Load()
	if now-last < int64(handshakeQuiet) || !said.CompareAndSwap(last, now) {
		return
	}
	a.logger.Info("handshake failed", "client", raw.RemoteAddr().String(), "problem", problem)
}

// problemOf says what is wrong with a handshake, and whether it is about a certificate for which an
// authority vouches. TLS tells the client no more than that it is about its certificate.
func (a *Authority) problemOf(err error) (problem string, vouched bool) {
	var (
		refused *tls.CertificateVerificationError
		invalid x509.CertificateInvalidError
		alert   *net.OpError
	)
	switch {
	case errors.As(err, &refused) && errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return a.clientOutOfTime(refused.UnverifiedCertificates, invalid.Cert)
	case errors.As(err, &alert) && alert.Op == "remote error" && strings.Contains(err.Error(), "certificate"):
		problem := fmt.Sprintf("the client refuses the certificate of this server (%v)", alert.Err)
		if own := a.endings()[0].problem(a.now()); own != "" {
			problem += ": " + own
		}
		return problem, false
	}
	return err.Error(), false
}

// clientOutOfTime says of a certificate in or above a client's chain that it has expired, or is not
// valid yet. The client's name is only there if it was vouched for when all of them were valid: else
// anybody could write it into the log. It may still be another who shows it, without its key.
func (a *Authority) clientOutOfTime(chain []*x509.Certificate, over *x509.Certificate) (problem string, vouched bool) {
	why, early := outOfTime(over, a.now())
	valid, todo := over.NotAfter, "the caller needs a new one"
	if early {
		valid, todo = over.NotBefore, "the clock of this machine is wrong, or that of whoever made it"
	}
	for _, c := range chain {
		switch {
		case early && c.NotBefore.After(valid):
			valid = c.NotBefore
		case !early && c.NotAfter.Before(valid):
			valid = c.NotAfter
		}
	}
	if _, err := verify(chain, x509.VerifyOptions{Roots: a.material.now().authorities, CurrentTime: valid, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return "the client's certificate is of no authority in --tls-client-ca, and one in its chain " + why, false
	}
	what := "the certificate of "
	if !over.Equal(chain[0]) {
		what = "a certificate above that of "
	}
	return what + newCertificate(chain, nil).whose() + " " + why + ": " + todo, true
}

// outOfTime says since when a certificate is over, or that it is early.
func outOfTime(c *x509.Certificate, now time.Time) (why string, early bool) {
	if now.Before(c.NotBefore) {
		return "is not valid before " + c.NotBefore.UTC().Format(time.RFC3339), true
	}
	return "expired at " + c.NotAfter.UTC().Format(time.RFC3339), false
}

// verify finds the chains by which a certificate counts that was shown with those above it.
func verify(shown []*x509.Certificate, options x509.VerifyOptions) ([][]*x509.Certificate, error) {
	options.Intermediates = x509.NewCertPool()
	for _, c := range shown[1:] {
		options.Intermediates.AddCert(c)
	}
	return shown[0].Verify(options)
}

// maxNameBytes bounds a name in a sentence.
const maxNameBytes = 128

// whose is whom the certificate names, for people.
func (c *Certificate) whose() string {
	name := "somebody without a name"
	switch {
	case c.err != nil:
	case !c.spiffe.IsZero():
		name = c.spiffe.String()
	case len(c.dns) > 0:
		name = dnsPrefix + c.dns[0]
	}
	if len(name) > maxNameBytes {
		return name[:maxNameBytes] + "…"
	}
	return name
}
