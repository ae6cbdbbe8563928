package main

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemd/idemd/store"
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

// attemptID is the id of an attempt on the command line. Given, it is not empty.
type attemptID struct{ opaque }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *attemptID) UnmarshalText(text []byte) error {
	if err := a.opaque.UnmarshalText(text); err != nil {
		return err
	}
	if len(a.opaque) == 0 || len(a.opaque) > store.MaxAttemptIDBytes {
		return fmt.Errorf("an attempt id has 1 to %d bytes, this one has %d", store.MaxAttemptIDBytes, len(a.opaque))
	}
	return nil
}

// span is a duration on the command line: like 90s or 1h30m, or whole days like 7d. Given,
// it is positive.
type span time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *span) UnmarshalText(text []byte) error {
	parsed, err := parseSpan(string(text))
	if err != nil || parsed <= 0 {
		return fmt.Errorf("%q is not a positive duration like 90s, 1h30m or 7d", text)
	}
	*d = span(parsed)
	return nil
}

// String returns the duration as it is typed.
func (d span) String() string { return store.SpanText(time.Duration(d)) }

func parseSpan(text string) (time.Duration, error) {
	number, inDays := strings.CutSuffix(text, "d")
	if !inDays {
		return time.ParseDuration(text)
	}
	const day = 24 * time.Hour
	days, err := strconv.ParseUint(number, 10, 16)
	return time.Duration(days) * day, err
}

// checkText refuses arguments and IDEMD_ variables that are not UTF-8. The parser would
// replace the bytes that are not, and so make one value of two.
func checkText(args, environ []string) error {
	for i, arg := range args {
		if !utf8.ValidString(arg) {
			return usageError("argument %d, %+q, is not valid UTF-8: give an attempt id or a fingerprint as hex:…, an outcome as @FILE; a key is UTF-8", i+1, arg)
		}
	}
	for _, variable := range environ {
		if strings.HasPrefix(variable, "IDEMD_") && !utf8.ValidString(variable) {
			name, _, _ := strings.Cut(variable, "=") // its value may be a secret
			return usageError("variable %+q is not valid UTF-8: give an attempt id or a fingerprint as hex:…, an outcome as @FILE; a key is UTF-8", name)
		}
	}
	return nil
}

// instant is a time in RFC 3339 on the command line. Given, it is not the zero time, which stands for none.
type instant struct{ time.Time }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (i *instant) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("%q is not a time like 2026-01-31T15:04:05Z (RFC 3339)", text)
	}
	if t.IsZero() {
		return fmt.Errorf("%q is what programs write for a time that they do not know: give the time, or leave it out", text)
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
func durationProto(d span) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(time.Duration(d))
}

// shown is text from elsewhere as it can be printed on a terminal: as it is, or quoted.
func shown(text string) string {
	if printable([]byte(text)) {
		return text
	}
	return strconv.Quote(text)
}

// keyText is a part of a key as a word for the shell, or quoted if it cannot be printed.
func keyText(part string) string {
	if printable([]byte(part)) {
		return shellQuote(part)
	}
	return strconv.Quote(part)
}

// oneLine is the text of an error on one line, with what does not print escaped.
func oneLine(text string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(text, "\n", "; ") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
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
