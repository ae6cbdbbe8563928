package idemhttp

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/idemd/idemd/store"
)

const (
	requestDomain = "idemd.fingerprint.http.v1"
	changedDomain = "idemd.fingerprint.http.changed.v1"
	fieldsDomain  = "idemd.fingerprint.http.fields.v1"

	// versionHTTP marks the versions of these fingerprints: those of client/fingerprint are
	// below it, or have the highest bit.
	versionHTTP uint32 = 1 << 30
)

// fingerprintOf is the fingerprint of a request. Below, N(x) is x in 8 bytes, big-endian, and
// S(x) is N(length of x in bytes) and x. The digest is the SHA-256 of
//
//	S("idemd.fingerprint.http.v1") S(path) S(query)
//	for each listed field, in the order of the names: S(name) N(count) and S(value) of each value
//	S(body)
//
// with path as it was received, still escaped, query as it was received, and names in canonical form
// (Content-Type). If the server has changed them before the guard, in another way than by taking a
// prefix off the path, the digest is that of
//
//	S("idemd.fingerprint.http.changed.v1") S(path) S(query) S(changed path) S(changed query)
//
// and the rest as above: neither alone need tell one request from another. The version is 2³⁰ and the lowest 30 bits of the first four bytes (big-endian) of
// the SHA-256 of S("idemd.fingerprint.http.fields.v1") and S(name) of each: fingerprints of
// other lists cannot be compared.
func fingerprintOf(r *http.Request, fields []string, body []byte) store.Fingerprint {
	b := appendTarget(nil, r)
	names := appendPart(nil, fieldsDomain)
	for _, name := range fields {
		b, names = appendPart(b, name), appendPart(names, name)
		values := r.Header.Values(name)
		if name == "Host" { // net/http has it beside the header
			values = []string{r.Host}
		}
		b = binary.BigEndian.AppendUint64(b, uint64(len(values)))
		for _, value := range values {
			b = appendPart(b, value)
		}
	}
	b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	digest := sha256.New()
	digest.Write(b)
	digest.Write(body)
	list := sha256.Sum256(names)
	version := versionHTTP | binary.BigEndian.Uint32(list[:4])&(versionHTTP-1)
	return store.Fingerprint{Version: version, Digest: string(digest.Sum(nil))}
}

// appendTarget appends the domain, and what the request is sent to.
func appendTarget(b []byte, r *http.Request) []byte {
	came := received(r)
	parts := []string{requestDomain, came.EscapedPath(), came.RawQuery}
	if r.URL.RawQuery != came.RawQuery || !strings.HasSuffix(came.EscapedPath(), r.URL.EscapedPath()) {
		parts = append(parts, r.URL.EscapedPath(), r.URL.RawQuery)
		parts[0] = changedDomain
	}
	for _, part := range parts {
		b = appendPart(b, part)
	}
	return b
}

func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
	return append(b, part...)
}
