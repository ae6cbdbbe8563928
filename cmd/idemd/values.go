package main

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const hexPrefix = "hex:"

// opaque is bytes on the command line: `hex:` and hexadecimal digits stand for the bytes
// they encode, everything else for itself.
type opaque []byte

// UnmarshalText implements [encoding.TextUnmarshaler].
func (o *opaque) UnmarshalText(text []byte) error {
	digits, isHex := strings.CutPrefix(string(text), hexPrefix)
	if !isHex {
		*o = opaque(text)
		return nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return fmt.Errorf("%q: after %q an even number of hexadecimal digits is expected", text, hexPrefix)
	}
	*o = b
	return nil
}

// String returns what UnmarshalText reads back as o.
func (o opaque) String() string {
	if printable(o) && !strings.HasPrefix(string(o), hexPrefix) {
		return string(o)
	}
	return hexPrefix + hex.EncodeToString(o)
}

// printable reports whether b is text that a terminal shows as it is.
func printable(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// instant is a time in RFC 3339 on the command line.
type instant struct{ time.Time }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (i *instant) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("%q is not a time like 2026-01-31T15:04:05Z (RFC 3339)", text)
	}
	i.Time = t
	return nil
}

func (i instant) proto() *timestamppb.Timestamp {
	if i.IsZero() {
		return nil
	}
	return timestamppb.New(i.Time)
}

// durationProto leaves a duration that was not given out of the request.
func durationProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// shellQuote returns s as one word of a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:@%+=,", r))
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
