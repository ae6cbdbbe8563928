package identity

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

const goodPolicy = `
grants:
  - principal: spiffe://example.org/payments
    role: caller            # a comment
    namespaces: [payments, refunds]
  - {principal: "spiffe://example.org/payments", role: operator, namespaces: [payments]}
  - {principal: dns:batch.example.org, role: caller, namespaces: ["*"]}
  - {principal: token:ops, role: operator, namespaces: ["*"]}
  - {principal: spiffe://example.org/region/eu, role: peer}
  - {principal: spiffe://example.org/region/us, role: peer, namespaces: ["*"]}
`

func authorizerOf(t *testing.T, text string) *Authorizer {
	t.Helper()
	policy, err := ParsePolicy([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w := &watched[*Policy]{}
	w.current.Store(&policy)
	return &Authorizer{w}
}

func TestAuthorize(t *testing.T) {
	a := authorizerOf(t, goodPolicy)
	for _, test := range []struct {
		principal string
		role      Role
		namespace string
		want      error
	}{
		{"spiffe://example.org/payments", Caller, "payments", nil},
		{"spiffe://example.org/payments", Caller, "refunds", nil},
		{"spiffe://example.org/payments", Operator, "payments", nil},
		{"spiffe://example.org/payments", Operator, "refunds", store.ErrNamespaceUnknown},
		{"spiffe://example.org/payments", Caller, "other", store.ErrNamespaceUnknown},
		{"spiffe://example.org/payments", Caller, "*", store.ErrInvalidArgument},
		{"spiffe://example.org/payments", Caller, "", store.ErrInvalidArgument},
		{"spiffe://example.org/payments", Peer, "payments", store.ErrPermissionDenied},
		{"spiffe://example.org/payments/x", Caller, "payments", store.ErrPermissionDenied},
		{"spiffe://example.org/Payments", Caller, "payments", store.ErrPermissionDenied},
		{"dns:batch.example.org", Caller, "anything", nil},
		{"dns:batch.example.org", Operator, "anything", store.ErrPermissionDenied},
		{"token:ops", Operator, "anything", nil},
		{"token:ops", Caller, "anything", store.ErrPermissionDenied},
		{"spiffe://example.org/region/eu", Peer, "anything", nil},
		{"spiffe://example.org/region/us", Caller, "anything", store.ErrPermissionDenied},
		{"", Caller, "payments", store.ErrPermissionDenied},
	} {
		err := a.Authorize(test.principal, test.role, test.namespace)
		if !errors.Is(err, test.want) {
			t.Errorf("%s as %s in %q: %v, want %v", test.principal, test.role, test.namespace, err, test.want)
		}
		switch {
		case errors.Is(test.want, store.ErrNamespaceUnknown) && err.Error() != store.NamespaceUnknown(test.namespace).Error():
			t.Errorf("the refusal differs from that of an absent namespace: %v", err)
		case errors.Is(test.want, store.ErrPermissionDenied) && !strings.Contains(err.Error(), test.role.String()):
			t.Errorf("the role is not named: %v", err)
		}
	}
	if err := (*Authorizer)(nil).Authorize("", Operator, "any"); err != nil {
		t.Errorf("without a policy: %v", err)
	}
}

func TestAuthorizeAny(t *testing.T) {
	a := authorizerOf(t, goodPolicy)
	for _, test := range []struct {
		principal string
		anyOf     []Role
		want      error
	}{
		{"spiffe://example.org/payments", []Role{Operator}, nil},
		{"spiffe://example.org/region/eu", []Role{Caller, Peer}, nil},
		{"spiffe://example.org/region/eu", []Role{Caller, Operator}, store.ErrPermissionDenied},
		{"token:nobody", []Role{Caller, Operator, Peer}, store.ErrPermissionDenied},
	} {
		if err := a.AuthorizeAny(test.principal, test.anyOf...); !errors.Is(err, test.want) {
			t.Errorf("%s as any of %v: %v", test.principal, test.anyOf, err)
		}
	}
	if a.AuthorizeAll("token:ops", Operator) != nil || !errors.Is(a.AuthorizeAll("spiffe://example.org/payments", Operator), store.ErrPermissionDenied) {
		t.Error("an operator of one namespace passes for one of all, or the other way round")
	}
	for namespace, may := range map[string]bool{"payments": true, "refunds": true, "other": false} {
		if a.MayUse("spiffe://example.org/payments", namespace) != may {
			t.Errorf("%s: want %t", namespace, may)
		}
	}
	if a.MayUse("spiffe://example.org/region/eu", "payments") {
		t.Error("a peer uses namespaces of its own")
	}
}

func TestEmptyPolicyGrantsNothing(t *testing.T) {
	a := authorizerOf(t, "grants: []")
	if err := a.Authorize("token:ops", Operator, "any"); !errors.Is(err, store.ErrPermissionDenied) {
		t.Error(err)
	}
}

func TestPoliciesThatAreNotUnderstood(t *testing.T) {
	entry := func(fields string) string { return "grants:\n  - {" + fields + "}\n" }
	for text, want := range map[string]string{
		"":                      "no grants",
		"# nothing":             "no grants",
		"grant: []":             "line 1: field grant not found",
		"grants: []\nmore: 1":   "line 2: field more not found",
		"grants: []\n---\na: 1": "more than one document",
		"grants: {a: b}":        "line 1",
		"grants: [":             "line 1",
		"grants:":               "line 1: a value is missing",
		"grants: [~]":           "line 1: a value is missing",
		entry("principal: token:a, role: caller, namespaces: [x, ~]") + "  -\n":                                                "a value is missing",
		entry("principal: token:a, role: caller, namespaces: [x]") + "  -\n":                                                   "line 3: a value is missing",
		entry("principal: token:a, role: peer, namespaces: [~]"):                                                               "line 2: a value is missing",
		entry("principal: token:a, role: caller, namespaces: [x], extra: 1"):                                                   "line 2: field extra not found",
		entry("principal: token:a, principal: token:b, role: caller"):                                                          "already",
		entry("principal: token:a, namespaces: [x]"):                                                                           "grant 1 needs",
		entry("role: caller, namespaces: [x]"):                                                                                 "grant 1 needs",
		entry("principal: 7, role: caller, namespaces: [x]"):                                                                   "line 2: a text",
		entry("principal: token:a, role: admin, namespaces: [x]"):                                                              `line 2: "admin" is no role`,
		entry("principal: token:a, role: Caller, namespaces: [x]"):                                                             "is no role",
		entry("principal: payments, role: caller, namespaces: [x]"):                                                            "is not a principal",
		entry("principal: token:A, role: caller, namespaces: [x]"):                                                             "not the name of a token",
		entry("principal: 'dns:*.example.org', role: caller, namespaces: [x]"):                                                 "not dns:",
		entry("principal: dns:Example.org, role: caller, namespaces: [x]"):                                                     "small letters",
		entry("principal: spiffe://example.org, role: caller, namespaces: [x]"):                                                "not a SPIFFE id",
		entry("principal: spiffe://Example.org/a, role: caller, namespaces: [x]"):                                              "not a SPIFFE id",
		entry("principal: spiffe://example.org/a/, role: caller, namespaces: [x]"):                                             "not a SPIFFE id",
		entry("principal: spiffe://example.org/*, role: caller, namespaces: [x]"):                                              "not a SPIFFE id",
		entry("principal: token:a, role: caller"):                                                                              "namespaces are missing",
		entry("principal: token:a, role: caller, namespaces: []"):                                                              "namespaces are missing",
		entry("principal: token:a, role: caller, namespaces: [x, x]"):                                                          "in it already",
		entry("principal: token:a, role: caller, namespaces: ['*', x]"):                                                        "in it already",
		entry("principal: token:a, role: caller, namespaces: [x, '*']"):                                                        "no name of a namespace",
		entry("principal: token:a, role: caller, namespaces: [UPPER]"):                                                         "no name of a namespace",
		entry("principal: token:a, role: peer, namespaces: [x]"):                                                               "leave namespaces out",
		entry("principal: token:a, role: caller, namespaces: [x]") + "  - {principal: token:a, role: caller, namespaces: [y]}": "line 3: token:a has the role caller already",
	} {
		if _, err := ParsePolicy([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A token that was put where it does not belong is in no error: those go into the log.
func TestNoErrorOfAPolicyShowsAToken(t *testing.T) {
	secret, _, _ := NewToken("a", time.Time{})
	entry := func(principal, role, namespace string) string {
		return fmt.Sprintf("grants: [{principal: %q, role: %q, namespaces: [%q]}]", principal, role, namespace)
	}
	for name, text := range map[string]string{
		"as a principal":       entry(secret, "caller", "x"),
		"as a token's name":    entry("token:"+secret, "caller", "x"),
		"as a DNS name":        entry("dns:"+secret, "caller", "x"),
		"in a SPIFFE id":       entry("spiffe://example.org/a b/"+secret, "caller", "x"),
		"as a role":            entry("token:a", secret, "x"),
		"as a namespace":       entry("token:a", "caller", secret),
		"as a field":           "grants: []\n" + secret + ": 1",
		"as a whole file":      secret,
		"after a scheme":       entry("Bearer "+secret, "caller", "x"),
		"where it is not YAML": "grants: [" + secret,
	} {
		_, err := ParsePolicy([]byte(text))
		if err == nil || strings.Contains(err.Error(), secret[len(tokenMark):len(tokenMark)+8]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{secret, "token:" + secret} { // and in other files
		if _, err := ParsePrincipal(text); err == nil || strings.Contains(err.Error(), secret[len(tokenMark):]) || !strings.Contains(err.Error(), "idemd_…") {
			t.Errorf("%v", err)
		}
	}
}
