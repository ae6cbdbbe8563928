package idemhttp

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"

	"github.com/idemd/idemd/store"
)

// scopeOf is the service, the method and the route.
func (o *options) scopeOf(r *http.Request) string {
	scope := r.Method + " " + routeOf(r)
	if o.named {
		scope = o.service + " " + scope
	}
	return bounded(scope)
}

// routeOf is the pattern of the route, which may begin with the method too, after the prefix that was
// taken off the path on its way to the route's mux. If the pattern is not one of a single route, or
// there is none, the path follows, as it came and, if it was changed in another way, as it is now.
// It is not left to the fingerprint: those of routes that list other fields cannot be compared.
func routeOf(r *http.Request) string {
	pattern := strings.TrimLeft(r.Pattern[strings.IndexAny(r.Pattern, " \t")+1:], " \t")
	path, came := canonicalPath(r.URL), canonicalPath(received(r))
	prefix, stripped := strings.CutSuffix(came, path)
	if !stripped {
		prefix, came = "", came+" "+path
	}
	switch {
	case isRoute(pattern, path):
		return prefix + pattern
	case isRoute(pattern, prefix+path): // the prefix was taken off behind the mux
		return pattern
	case pattern == "":
		return came
	default:
		return prefix + pattern + " " + came
	}
}

// isRoute reports whether a pattern takes the path as that of one route: it has as many segments, and
// the same but for wildcards. A router below a mux may not have said which of its own took the path.
func isRoute(pattern, path string) bool {
	slash := max(strings.Index(pattern, "/"), 0) // after the host
	parts, segments := strings.Split(pattern[slash:], "/"), strings.Split(path, "/")
	if len(parts) != len(segments) || strings.HasSuffix(pattern, "...}") {
		return false
	}
	for i, part := range parts {
		if !strings.Contains(part, "{") && escaped(part) != segments[i] {
			return false
		}
	}
	return true
}

// canonicalPath is a path with one spelling of what is escaped: a repeat whose path was spelled
// otherwise is no new request in another scope, but one with another fingerprint.
func canonicalPath(u *url.URL) string {
	segments := strings.Split(u.EscapedPath(), "/")
	for i, segment := range segments {
		segments[i] = escaped(segment)
	}
	return strings.Join(segments, "/")
}

// escaped escapes a segment of a path or pattern as is needed, and no more.
func escaped(segment string) string {
	if s, err := url.PathUnescape(segment); err == nil {
		return url.PathEscape(s)
	}
	return segment
}

// bounded has a hash in the place of what is too long: a caller can make a path as long as it likes.
func bounded(scope string) string {
	if len(scope) <= store.MaxScopeBytes {
		return scope
	}
	sum := sha256.Sum256([]byte(scope))
	hash := " " + hex.EncodeToString(sum[:]) // which is no path
	return strings.ToValidUTF8(scope[:store.MaxScopeBytes-len(hash)], "") + hash
}

// received is the URL that the request came with: what is outside, such as [http.StripPrefix], may
// have changed r.URL. It is r.URL in a request that did not come by a server.
func received(r *http.Request) *url.URL {
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u
	}
	return r.URL
}
