package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// What is wrong with a line is said in the words of the file: the field, and what may stand there.
func TestImportLineErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"id": 5}`:                                               `id must be a text, "…"`,
		`{"id": "a", "happened": "yes"}`:                          `happened must be true or false`,
		`{"id": "a", "outcome": "charged"}`:                       `outcome must be an object, {…}`,
		`{"id": "a", "outcome": []}`:                              `outcome must be an object, {…}`,
		`{"id": "a", "outcome": {"body": {"x": 1}}}`:              `outcome.body must be a text, "…"`,
		`{"id": "a", "outcome": {"code": "NOPE"}}`:                `outcome.code must be a name like "NOT_FOUND" or a number from 0 to 16`,
		`{"id": "a", "outcome": {"code": [1]}}`:                   `outcome.code must be a name like "NOT_FOUND" or a number from 0 to 16`,
		`{"id": "a", "outcome": {"code": 17}}`:                    `outcome.code must be a name like "NOT_FOUND" or a number from 0 to 16`,
		`{"id": "a", "outcome": {"code": true}}`:                  `outcome.code must be a name like "NOT_FOUND" or a number from 0 to 16`,
		`{"id": "a", "outcome": {"code": 1.5}}`:                   `outcome.code must be a name like "NOT_FOUND" or a number from 0 to 16`,
		`{"id": "a", "completed_at": "yesterday"}`:                `completed_at must be a time like "2026-01-31T15:04:05Z"`,
		`{"id": "a", "completed_at": 5}`:                          `completed_at must be a time like "2026-01-31T15:04:05Z"`,
		`{"id": "a", "completed_at": ["2026-01-31T15:04:05Z"]}`:   `completed_at must be a time like "2026-01-31T15:04:05Z"`,
		`{"id": "a", "fingerprint": {"version": -1}}`:             `fingerprint.version must be a whole number from 0 to 4294967295`,
		`{"id": "a", "fingerprint": {"version": "1"}}`:            `fingerprint.version must be a whole number from 0 to 4294967295`,
		`{"id": "a", "fingerprint": {"version": 4294967296}}`:     `fingerprint.version must be a whole number from 0 to 4294967295`,
		`{"id": "a", "fingerprint": {"version": 1.5}}`:            `fingerprint.version must be a whole number from 0 to 4294967295`,
		`{"id": "a", "fingerprint": {"digest": "%%%"}}`:           `fingerprint.digest must be base64, a text like "YQ=="`,
		`{"id": "a", "fingerprint": {"digest": 5}}`:               `fingerprint.digest must be base64, a text like "YQ=="`,
		`{"id": "a", "fingerprint": {"digest": [1, 2]}}`:          `fingerprint.digest must be base64, a text like "YQ=="`,
		`{"id": "a", "recorded": {"bodyType": ""}}`:               `unknown field "bodyType"`,
		`{"id": "a", "outcom": {}}`:                               `unknown field "outcom"`,
		`{"id": "a", "fingerprint": {"digest": "", "bytes": ""}}`: `unknown field "bytes"`,
	} {
		if _, err := parseImportLine([]byte(line)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	for _, broken := range []string{``, `{`, `{"id": "a",}`, `[]`, `{"id": "a"} x`} {
		if _, err := parseImportLine([]byte(broken)); err == nil || strings.Contains(err.Error(), "json:") {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

func TestImportLineValues(t *testing.T) {
	for text, want := range map[string]codes.Code{`"NOT_FOUND"`: codes.NotFound, `"not_found"`: codes.NotFound, `"5"`: codes.NotFound, `5`: codes.NotFound, `0`: codes.OK, `null`: codes.OK} {
		line, err := parseImportLine([]byte(`{"outcome": {"code": ` + text + `}}`))
		if err != nil || codes.Code(line.Outcome.Code) != want {
			t.Errorf("code %s: %+v, %v", text, line.Outcome, err)
		}
	}
	line, err := parseImportLine([]byte(`{"completed_at": "2026-01-31T16:04:05+01:00", "fingerprint": {"digest": "AQI=", "version": 1}}`))
	if err != nil || string(line.Fingerprint.Digest) != "\x01\x02" || !line.CompletedAt.Equal(time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC)) {
		t.Errorf("%+v, %v", line, err)
	}
	line, err = parseImportLine([]byte(`{"completed_at": null, "fingerprint": {"digest": null}}`))
	if err != nil || line.Fingerprint.Digest != nil || line.CompletedAt != nil {
		t.Errorf("of null: %+v, %v", line, err)
	}
}
