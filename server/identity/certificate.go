package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Certificate is that of a client, which TLS has verified when the connection was made, and the
// names that it gives.
type Certificate struct {
	leaf          *x509.Certificate
	intermediates []*x509.Certificate
	spiffe        spiffeid.ID // or
	dns           []string
	err           error // it names nobody
	expires       time.Time

	// verified is the authorities under which it was verified last. They may change while the
	// connection lives.
	verified atomic.Pointer[x509.CertPool]
}

// newCertificate reads a verified chain, the client's own certificate first.
func newCertificate(chain []*x509.Certificate, under *x509.CertPool) *Certificate {
	c := &Certificate{leaf: chain[0], intermediates: chain[1:], expires: chain[0].NotAfter}
	for _, above := range chain[1:] {
		if above.NotAfter.Before(c.expires) {
			c.expires = above.NotAfter
		}
	}
	c.verified.Store(under)
	switch {
	case c.leaf.IsCA:
		c.err = errors.New("the certificate is an authority's")
	case len(c.leaf.URIs) > 0:
		c.spiffe, c.err = x509svid.IDFromCert(c.leaf)
	case len(c.leaf.DNSNames) > 0:
		for _, name := range c.leaf.DNSNames {
			c.dns = append(c.dns, strings.ToLower(name))
		}
	default:
		c.err = errors.New("the certificate has no URI and no DNS name")
	}
	return c
}

// check finds whether the certificate still counts.
func (c *Certificate) check(authorities *x509.CertPool, now time.Time) error {
	if !now.Before(c.expires) {
		return fmt.Errorf("the certificate of %s, or one above it, expired at %s: the caller needs a new one", c.whose(), c.expires.UTC().Format(time.RFC3339))
	}
	if c.verified.Load() == authorities {
		return nil
	}
	_, err := verify(append([]*x509.Certificate{c.leaf}, c.intermediates...), x509.VerifyOptions{
		Roots: authorities, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err == nil {
		c.verified.Store(authorities)
	}
	return err
}

// principal returns whose certificate it is. Of several DNS names one must be in the policy, and
// no other.
func (c *Certificate) principal(domains []spiffeid.TrustDomain, policy *Policy) (Principal, error) {
	switch {
	case c.err != nil:
		return "", c.err
	case !c.spiffe.IsZero():
		return spiffePrincipal(c.spiffe, domains)
	case len(c.dns) == 1:
		return Principal(dnsPrefix + c.dns[0]), nil
	}
	var found Principal
	for _, name := range c.dns {
		candidate := Principal(dnsPrefix + name)
		if !policy.knows(candidate) || candidate == found {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("the certificate is ambiguous: the policy has %s and %s", found, candidate)
		}
		found = candidate
	}
	if found == "" {
		return "", fmt.Errorf("the certificate is ambiguous: of its %d DNS names the policy has none", len(c.dns))
	}
	return found, nil
}

func spiffePrincipal(id spiffeid.ID, domains []spiffeid.TrustDomain) (Principal, error) {
	if len(domains) == 0 {
		return Principal(id.String()), nil
	}
	for _, domain := range domains {
		if id.MemberOf(domain) {
			return Principal(id.String()), nil
		}
	}
	return "", fmt.Errorf("%s is of another trust domain", id)
}
