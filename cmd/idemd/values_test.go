package main

import (
	"crypto/sha256"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestOpaque(t *testing.T) {
	for text, want := range map[string]string{
		"order-1":         "order-1",
		"hex:00ff":        "\x00\xff",
		"hex:":            "",
		"hex":             "hex",
		"HEX:00":          "HEX:00",
		"hex:6865783a":    "hex:",
		"zwölf ½":         "zwölf ½",
		"hex:0a":          "\n",
		"hex:6F6b":        "ok",
		"hex:68657878":    "hexx",
		"x:hex:zz":        "x:hex:zz",
		" leading and \t": " leading and \t",
	} {
		var o opaque
		if err := o.UnmarshalText([]byte(text)); err != nil || string(o) != want {
			t.Errorf("%q: got %q, %v; want %q", text, string(o), err, want)
		}
		var again opaque
		if err := again.UnmarshalText([]byte(o.String())); err != nil || string(again) != want {
			t.Errorf("%q is shown as %q, which reads back as %q, %v", want, o.String(), string(again), err)
		}
	}
	for _, text := range []string{"hex:0", "hex:zz", "hex:0 0", "hex:00\n"} {
		var o opaque
		if err := o.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %q, want an error", text, string(o))
		}
	}
}

func TestInstant(t *testing.T) {
	for _, text := range []string{"0001-01-01T00:00:00Z", "0001-01-01T01:00:00+01:00", "yesterday", ""} {
		var i instant
		if err := i.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %v, want an error", text, i)
		}
	}
	run(t, "run", "--key=a", "--intent-time=0001-01-01T00:00:00Z", "--", "true").fails(t, exitRunFailed, "--intent-time", "a time that they do not know")
}

func TestShellQuote(t *testing.T) {
	for _, word := range []string{
		"", "order-1", "two words", "it's", `back\slash`, "$HOME `date` \"x\"", "a\nb", "ünï", "-flag", "*?[a]~#!&|;<>(){}", "=x", "~",
	} {
		out, err := exec.Command("sh", "-c", "printf %s "+shellQuote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q quoted as %s reads back as %q, %v", word, shellQuote(word), out, err)
		}
	}
}

func TestCode(t *testing.T) {
	for text, want := range map[string]codes.Code{
		"OK": codes.OK, "0": codes.OK, "NOT_FOUND": codes.NotFound, "not_found": codes.NotFound,
		"5": codes.NotFound, "16": codes.Unauthenticated, "INVALID_ARGUMENT": codes.InvalidArgument,
	} {
		var c code
		if err := c.UnmarshalText([]byte(text)); err != nil || codes.Code(c) != want {
			t.Errorf("%q: got %v, %v; want %v", text, codes.Code(c), err, want)
		}
	}
	for _, text := range []string{"", "17", "-1", "256", "NotAFound", "1.0", `OK"`} {
		var c code
		if err := c.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
			t.Errorf("%q: got %v, %v; want an error that says what is allowed", text, codes.Code(c), err)
		}
	}
}

func TestBodyText(t *testing.T) {
	for body, want := range map[string]string{
		"charged 42 EUR":     "charged 42 EUR",
		"{\n\t\"a\": 1\n}\n": `"{\n\t\"a\": 1\n}\n"`,
		"\x00\xff":           fmt.Sprintf("2 bytes, sha256 %x", sha256.Sum256([]byte{0, 255})),
		"\x1b[31mred":        fmt.Sprintf("8 bytes, sha256 %x", sha256.Sum256([]byte("\x1b[31mred"))),
	} {
		if got := bodyText([]byte(body)); got != want {
			t.Errorf("%q: got %s, want %s", body, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for _, text := range []string{"35d", "7d", "2d", "24h", "25h", "1h", "1h30m", "1h0m1s", "10m", "10m30s", "30s", "60ms", "100h"} {
		var d span
		if err := d.UnmarshalText([]byte(text)); err != nil || d.String() != text {
			t.Errorf("%s is shown as %v, %v", text, d, err)
		}
	}
}
