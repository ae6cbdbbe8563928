package identity

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// tokenMark makes a token known as one of idemd's, wherever it is found.
	tokenMark  = "idemd_"
	tokenBytes = 32
	digestMark = "sha256:"
)

// Tokens are those that count. Only their digests are kept: they are random enough not to be
// guessed from them.
type Tokens struct {
	byDigest map[[sha256.Size]byte]token
}

type token struct {
	digest   [sha256.Size]byte
	name     string
	notAfter time.Time // zero: for ever
}

// NewToken draws a token. Its line goes into the file of tokens; a zero time is for ever.
func NewToken(name string, notAfter time.Time) (secret, line string, err error) {
	if err := checkTokenName(name); err != nil {
		return "", "", err
	}
	random := make([]byte, tokenBytes)
	_, _ = rand.Read(random) // does not fail
	secret = tokenMark + base64.RawURLEncoding.EncodeToString(random)
	digest := sha256.Sum256([]byte(secret))
	line = name + " " + digestMark + hex.EncodeToString(digest[:])
	if !notAfter.IsZero() {
		line += " " + notAfter.UTC().Format(time.RFC3339)
	}
	return secret, line, nil
}

// ParseTokens reads a file of tokens. A name may have several tokens, so that one can take the place
// of another while both count; a token has one name. No error quotes more of a line than its name: what stands
// there may be a token that does not belong there.
func ParseTokens(text []byte) (*Tokens, error) {
	t := &Tokens{byDigest: map[[sha256.Size]byte]token{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		read, err := parseToken(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if _, double := t.byDigest[read.digest]; double {
			return nil, fmt.Errorf("line %d: its token stands above already", n)
		}
		t.byDigest[read.digest] = read
	}
	return t, lines.Err()
}

func parseToken(fields []string) (read token, err error) {
	form := errors.New("it is not NAME sha256:HEX [NOT-AFTER], with a time like 2027-01-31T15:04:05Z; idemd token new NAME makes one")
	if len(fields) < 2 || len(fields) > 3 || checkTokenName(fields[0]) != nil {
		return read, form
	}
	read.name = fields[0]
	digits, marked := strings.CutPrefix(fields[1], digestMark)
	n, err := hex.Decode(read.digest[:], []byte(digits[:min(len(digits), 2*sha256.Size)]))
	if !marked || err != nil || n != sha256.Size || len(digits) != 2*sha256.Size {
		return read, form
	}
	if len(fields) == 3 {
		if read.notAfter, err = time.Parse(time.RFC3339, fields[2]); err != nil {
			return read, form
		}
	}
	return read, nil
}

// find returns whose token it is. The error is for the log. What the time of the answer tells is
// about the digest, of which nobody who has not the token can choose the bytes.
func (t *Tokens) find(secret string, now time.Time) (Principal, error) {
	digest := sha256.Sum256([]byte(secret))
	found, ok := t.byDigest[digest]
	switch {
	case !ok || subtle.ConstantTimeCompare(found.digest[:], digest[:]) != 1:
		return "", errors.New("the token is not known")
	case !found.notAfter.IsZero() && !now.Before(found.notAfter):
		return "", fmt.Errorf("the token of %s expired at %s", found.name, found.notAfter.Format(time.RFC3339))
	}
	return Principal(tokenPrefix + found.name), nil
}
