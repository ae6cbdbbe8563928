// Package devca makes certificates that are thrown away: for tests and for `idemd dev-certs`.
// It is no way to run a certificate authority: nothing is revoked, and the key lies about.
package devca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

// CA is a certificate authority.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// Leaf is what a certificate says.
type Leaf struct {
	URIs      []string
	DNS       []string
	IPs       []net.IP
	NotBefore time.Time
	NotAfter  time.Time
	Server    bool // may be a server's
	Client    bool // may be a client's
}

// New returns an authority that is valid from one time to another.
func New(name string, from, to time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &CA{cert, key}, err
}

// PEM returns the certificate of the authority.
func (ca *CA) PEM() []byte { return pemOf("CERTIFICATE", ca.cert.Raw) }

// Issue makes a certificate.
func (ca *CA) Issue(leaf Leaf) (Pair, error) {
	template := &x509.Certificate{
		SerialNumber: serial(), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		DNSNames: leaf.DNS, IPAddresses: leaf.IPs, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	if leaf.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if leaf.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, text := range leaf.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return Pair{}, fmt.Errorf("%q is no URI: %w", text, err)
		}
		template.URIs = append(template.URIs, uri)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	return Pair{Cert: pemOf("CERTIFICATE", der), Key: pemOf("PRIVATE KEY", keyDER)}, err
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // does not fail
	return n.Add(n, big.NewInt(1))
}
