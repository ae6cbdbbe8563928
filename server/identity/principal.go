package identity

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Principal is who somebody is: a SPIFFE id, or `dns:` or `token:` and a name. It is compared
// as a whole.
type Principal string

const (
	spiffePrefix = "spiffe://"
	dnsPrefix    = "dns:"
	tokenPrefix  = "token:"
	// maxPrincipalBytes leaves room for it wherever it is noted.
	maxPrincipalBytes = 200
)

var (
	tokenName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	// tokenInText is a token, or what is left of one.
	tokenInText = regexp.MustCompile(tokenMark + `[A-Za-z0-9_-]+`)
	dnsName     = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9])?)*$`)
)

// ParsePrincipal reads a principal, which has one spelling only.
func ParsePrincipal(text string) (Principal, error) {
	if len(text) > maxPrincipalBytes {
		return "", fmt.Errorf("a principal has at most %d bytes, this one has %d", maxPrincipalBytes, len(text))
	}
	switch {
	case strings.HasPrefix(text, spiffePrefix):
		id, err := spiffeid.FromString(text)
		if err != nil || id.String() != text || id.Path() == "" {
			return "", fmt.Errorf("%s is not a SPIFFE id like spiffe://example.org/payments, all of it given", quote(text))
		}
	case strings.HasPrefix(text, dnsPrefix):
		if !dnsName.MatchString(text[len(dnsPrefix):]) {
			return "", fmt.Errorf("%s is not dns: and a whole name in small letters, like dns:payments.example.org", quote(text))
		}
	case strings.HasPrefix(text, tokenPrefix):
		if err := checkTokenName(text[len(tokenPrefix):]); err != nil {
			return "", err
		}
	default:
		return "", fmt.Errorf("%s is not a principal: spiffe://trust.domain/path, dns:NAME or token:NAME", quote(text))
	}
	return Principal(text), nil
}

// withoutTokens is a text as it may be logged: a token that was put where it does not belong is one
// all the same.
func withoutTokens(text string) string { return tokenInText.ReplaceAllString(text, tokenMark+"…") }

func quote(text string) string { return withoutTokens(strconv.Quote(text)) }

func checkTokenName(name string) error {
	if !tokenName.MatchString(name) {
		return fmt.Errorf("%s is not the name of a token: 1 to 63 small letters, digits and . _ -, with a letter or digit first", quote(name))
	}
	return nil
}

// Role is what somebody may be.
type Role uint8

// The roles.
const (
	// Caller claims keys.
	Caller Role = iota
	// Operator looks after namespaces and settles keys.
	Operator
	// Peer is another region.
	Peer
	roles
)

var roleNames = [roles]string{Caller: "caller", Operator: "operator", Peer: "peer"}

func (r Role) String() string { return roleNames[r] }
