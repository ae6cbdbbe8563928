package identity

import (
	"strings"
	"testing"
	"time"
)

func TestTokens(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	first, firstLine, err := NewToken("first", time.Time{})
	if err != nil || !strings.HasPrefix(first, "idemd_") || len(first) != len("idemd_")+43 {
		t.Fatalf("%q, %v", first, err)
	}
	second, secondLine, _ := NewToken("second", now.Add(time.Hour))
	if strings.Contains(firstLine+secondLine, first) || first == second {
		t.Fatal("the line shows the token, or two are the same")
	}
	tokens, err := ParseTokens([]byte("# ours\n\n" + firstLine + "\r\n  " + secondLine + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		secret string
		at     time.Time
		want   Principal
		why    string
	}{
		{first, now, "token:first", ""},
		{second, now, "token:second", ""},
		{second, now.Add(time.Hour - 1), "token:second", ""},
		{second, now.Add(time.Hour), "", "expired"},
		{first + "x", now, "", "not known"},
		{first[:len(first)-1], now, "", "not known"},
		{strings.ToLower(first), now, "", "not known"},
		{"", now, "", "not known"},
		{strings.Fields(firstLine)[1], now, "", "not known"}, // what is stored is no token
	} {
		got, err := tokens.find(test.secret, test.at)
		if got != test.want || (err == nil) != (test.why == "") || err != nil && !strings.Contains(err.Error(), test.why) {
			t.Errorf("%v, %v: want %q %q", got, err, test.want, test.why)
		}
	}
}

// A name may have several tokens, each with an end of its own.
func TestSeveralTokensOfOneName(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	before, beforeLine, _ := NewToken("ops", now)
	after, afterLine, _ := NewToken("ops", time.Time{})
	tokens, err := ParseTokens([]byte(beforeLine + "\n" + afterLine))
	if err != nil {
		t.Fatal(err)
	}
	for secret, at := range map[string]time.Time{before: now.Add(-1), after: now} {
		if got, err := tokens.find(secret, at); got != "token:ops" || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
	if got, err := tokens.find(before, now); err == nil {
		t.Errorf("the other token keeps one that expired: %v", got)
	}
}

// What does not belong into the file may be a token.
func TestTokensThatAreNotUnderstood(t *testing.T) {
	secret, line, _ := NewToken("a", time.Time{})
	digest := strings.Fields(line)[1]
	for _, text := range []string{
		secret, "a " + secret, secret + " " + digest, "A " + digest, "a " + digest[:len(digest)-1], "a " + digest + "0", "a " + digest[7:],
		"a sha256:" + strings.Repeat("x", 64), line + " tomorrow", line + " 2027-01-01T00:00:00Z x", line + "\n" + line,
		line + "\nb " + digest, line + "\na sha256:" + strings.Repeat("0", 64) + "\n" + line + " 2027-01-01T00:00:00Z",
	} {
		_, err := ParseTokens([]byte("# first\n" + text))
		if err == nil || !strings.HasPrefix(err.Error(), "line ") || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), digest[7:]) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, _, err := NewToken("two words", time.Time{}); err == nil {
		t.Error("a name of two words")
	}
}
