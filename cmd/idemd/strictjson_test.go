package main

import (
	"strings"
	"testing"
)

// A line of an import says exactly what it says, or is refused.
func TestImportLine(t *testing.T) {
	for text, want := range map[string]string{
		`{"id": "a"}`: "a",
		" {\"id\": \"\\u00e9 \\ud83d\\ude00\"}\r": "é 😀",
		`{"id": "�"}`:                             "�",
		`{"id": "\\ud800"}`:                       `\ud800`,
		`{"id": "\ufffd"}`:                        "�",
		`{"id": "a", "outcome": {"body": "\"}"}}`: "a",
		`{"id": "\ud83d\ude00\ud83d\ude00\\u\""}`: `😀😀\u"`,
		`{"id": "a", "outcome": {"code": "ABORTED"}, "completed_at": "2026-01-31T15:10:00Z", "fingerprint": {"version": 1, "digest": "YWI="}, "happened": false, "nothing": null}`: "a",
	} {
		line, err := parseImportLine([]byte(text))
		if err != nil || line.ID != want {
			t.Errorf("%s: id %q, %v, want %q", text, line.ID, err, want)
		}
	}
	for text, says := range map[string]string{
		"{\"id\": \"a\xff\"}":                     "byte 10 is not UTF-8",
		"{\"id\": \"a\", \"\xff\": 1}":            "byte 14 is not UTF-8",
		`{"id": "a\ud800"}`:                       `\ud800 is half of a character`,
		`{"id": "a\uDC00"}`:                       `\uDC00 is half of a character`,
		`{"id": "\ud800\ud800\udc00"}`:            `\ud800 is half of a character`,
		`{"id": "\ud800\\udc00"}`:                 `\ud800 is half of a character`,
		`{"id": "\ud800\u0041"}`:                  `\ud800 is half of a character`,
		`{"id": "a", "ID": "b"}`:                  `unknown field "ID"`,
		`{"ID": "a"}`:                             `unknown field "ID"`,
		`{"id": "a", "ſcope": "b"}`:               `unknown field "ſcope"`,
		`{"id": "a", "scop": "b"}`:                `unknown field "scop"`,
		`{"id": "a", "id": "a"}`:                  `field "id" is given twice`,
		`{"id": "a", "\u0069d": "b"}`:             `field "id" is given twice`,
		`{"outcome": {"body": "a", "body": "b"}}`: `field "body" is given twice`,
		`{"outcome": {"Body": "a"}}`:              `unknown field "Body"`,
		`{"id": "a"} {"id": "b"}`:                 "after top-level value",
		`{"id": "a"}}`:                            "after top-level value",
		`{"id": "a"}]`:                            "after top-level value",
		`{"id": "a"} x`:                           "after top-level value",
		`{"id": "a"`:                              "unexpected end",
		"{\"id\": \"a\x01\"}":                     "invalid character",
		`["a"]`:                                   "an object is expected",
		`null`:                                    "an object is expected",
		`{"id": 7}`:                               "id must be a text",
	} {
		if line, err := parseImportLine([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v, want an error that says %q", text, line, err, says)
		}
	}
}
