package identity

import (
	"strings"
	"testing"
	"time"
)

// Whatever a policy holds, it is read or refused, and grants nothing to nobody.
func FuzzPolicy(f *testing.F) {
	f.Add(goodPolicy)
	f.Add("grants: &a [*a]")
	f.Add("grants:\n  - {principal: !!str 7, role: &r caller, namespaces: [*r]}")
	f.Fuzz(func(t *testing.T, text string) {
		policy, err := ParsePolicy([]byte(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		for principal, of := range policy.grants {
			if read, err := ParsePrincipal(string(principal)); err != nil || read != principal {
				t.Errorf("%q is in it: %v", principal, err)
			}
			for role := range roles {
				if of[role].granted != (of[role].all || len(of[role].namespaces) > 0) {
					t.Errorf("%s as %s: %+v", principal, role, of[role])
				}
			}
		}
	})
}

// Whatever a file of tokens holds, none of it is quoted but what may be, and nothing is a token
// that was not drawn.
func FuzzTokens(f *testing.F) {
	_, line, _ := NewToken("a", time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
	f.Add(line)
	f.Add("# a\n\n" + line + " x")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := ParseTokens([]byte(text))
		if err != nil {
			return
		}
		for _, word := range strings.Fields(text) {
			if principal, err := tokens.find(word, time.Time{}); err == nil {
				t.Errorf("%q is a token of %s", word, principal)
			}
		}
	})
}
