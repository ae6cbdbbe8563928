package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// Policy says how a route is guarded. The zero Policy guards the requests that carry a key.
type Policy struct {
	// Required refuses requests without a key. Without it they act unguarded, and are counted.
	Required bool
	// Methods lists what is guarded, in capitals; the other methods pass. The default is POST and PATCH.
	Methods []string
	// Lease is how long the key is held without a renewal, 1 s to 15 min: how long others wait
	// after this process died. The default is the namespace's.
	Lease time.Duration
	// Hold asks that nobody acts after an attempt of which nobody knows what it did, before a
	// person has settled it.
	Hold bool
	// Wait is how long a repeat waits for the request that acts, at most 5 min. By default it
	// is refused at once. A server that shuts down waits for it as long.
	Wait time.Duration
	// NoEffect lists the statuses, of 400 and above, with which this route says that nothing
	// happened. A status proves nothing by itself, so by default there are none. See [NoEffect].
	NoEffect []int
	// FailOpen lets a request act unguarded if idemd does not answer, as [client.Policy] says.
	// The default is to refuse it: 503.
	FailOpen bool
	// MaxBody bounds the body of a request, which is read into memory: a larger one is refused
	// with 413. The default is 1 MiB.
	MaxBody int64
	// Fingerprint lists the header fields that tell one request from another. The default is
	// Content-Type. List Host if what is asked for depends on it, as with a tenant by host. With
	// another list what was stored before cannot be compared, and is counted.
	Fingerprint []string
	// Replay lists header fields of the response that a repeat gets too, beside Content-Type,
	// Content-Encoding, Content-Language, Content-Location, Content-Disposition, Content-Range,
	// Allow, ETag, Location and X-Content-Type-Options. Credentials cannot be listed, nor is a trailer one of these fields;
	// a Retry-After that is listed is that of the first response, however long ago that was.
	Replay []string
}

const defaultMaxBody = 1 << 20

// withDefaults returns the policy with what is left out filled in, and why it cannot work.
func (p Policy) withDefaults() (Policy, error) {
	if p.Methods == nil {
		p.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if p.MaxBody == 0 {
		p.MaxBody = defaultMaxBody
	}
	if p.Fingerprint == nil {
		p.Fingerprint = []string{"Content-Type"}
	}
	p.Fingerprint = canonical(p.Fingerprint)
	p.Replay = canonical(append([]string{
		"Allow", "Content-Language", "Content-Location", "Content-Disposition", "Content-Range", "Etag", "Location", "X-Content-Type-Options",
	}, p.Replay...))
	return p, p.check()
}

func (p Policy) check() error {
	if len(p.Methods) == 0 {
		return errors.New("an empty list of Methods guards nothing; leave it nil for POST and PATCH")
	}
	for _, method := range p.Methods {
		if strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || method == "" {
			return fmt.Errorf("method %q is not in capitals, such as PUT, so that no request would be guarded", method)
		}
	}
	for _, name := range p.Replay {
		if slices.Contains(neverReplayed, name) {
			return fmt.Errorf("%s holds a credential, or belongs to HTTP or to the guard itself, and cannot be replayed", name)
		}
	}
	for _, status := range p.NoEffect {
		if status < 400 || status > 599 {
			return fmt.Errorf("status %d cannot mean that nothing happened", status)
		}
	}
	if p.MaxBody < 0 {
		return fmt.Errorf("MaxBody is %d; it is a count of bytes", p.MaxBody)
	}
	probe := store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: "x"}, AttemptID: "x", Lease: p.Lease, Wait: p.Wait}
	return probe.Validate()
}

// neverReplayed holds credentials, which are made for one caller and must not be stored, and what
// is about one message on its way.
var neverReplayed = []string{
	"Set-Cookie", "Cookie", "Authorization", "Proxy-Authorization", "Www-Authenticate", "Proxy-Authenticate",
	"Authentication-Info", "Proxy-Authentication-Info",
	"Connection", "Content-Length", "Date", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	HeaderKey, HeaderReplayed, HeaderNotRecorded, HeaderUnknown, HeaderEnd, HeaderRefused,
}

// canonical sorts names, so that their order does not count.
func canonical(names []string) []string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = http.CanonicalHeaderKey(name)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
