package identity

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/region/strictyaml"
	"github.com/idemd/idemd/store"
)

// everyNamespace in a grant is all of them.
const everyNamespace = "*"

// Policy is what principals were granted. Who has no grant may do nothing.
type Policy struct {
	grants map[Principal]*[roles]scope
}

// scope is the namespaces in which a principal has a role.
type scope struct {
	granted    bool
	all        bool
	namespaces map[string]bool
}

func (s *scope) has(namespace string) bool { return s.all || s.namespaces[namespace] }

// scopeOf is where a principal has a role.
func (p *Policy) scopeOf(principal Principal, role Role) *scope {
	if of := p.grants[principal]; of != nil {
		return &of[role]
	}
	return &scope{}
}

func (p *Policy) knows(principal Principal) bool { return p.grants[principal] != nil }

// scalar is a text in a file and where it stands.
type scalar struct {
	text string
	line int
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (s *scalar) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		return fmt.Errorf("line %d: a text is expected", n.Line)
	}
	s.text, s.line = n.Value, n.Line
	return nil
}

// policyFile is how a policy is written.
type policyFile struct {
	Grants []grantEntry `yaml:"grants"`
}

type grantEntry struct {
	Principal  scalar   `yaml:"principal"`
	Role       scalar   `yaml:"role"`
	Namespaces []scalar `yaml:"namespaces"`
}

// ParsePolicy reads a policy, and refuses all that it does not understand.
func ParsePolicy(text []byte) (*Policy, error) {
	p, err := parsePolicy(text)
	if err != nil {
		return nil, errors.New(withoutTokens(err.Error()))
	}
	return p, nil
}

func parsePolicy(text []byte) (*Policy, error) {
	var file policyFile
	if err := strictyaml.Decode(text, &file); err != nil {
		return nil, err
	}
	if file.Grants == nil { // `grants: []` says that nobody may do anything; an empty file is a mistake
		return nil, errors.New("it has no grants")
	}
	p := &Policy{grants: map[Principal]*[roles]scope{}}
	for i, entry := range file.Grants {
		if err := p.add(entry, i+1); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Policy) add(entry grantEntry, number int) error {
	if entry.Principal.text == "" || entry.Role.text == "" {
		return fmt.Errorf("grant %d needs a principal and a role", number)
	}
	principal, err := ParsePrincipal(entry.Principal.text)
	if err != nil {
		return fmt.Errorf("line %d: %w", entry.Principal.line, err)
	}
	role := Role(slices.Index(roleNames[:], entry.Role.text))
	if role >= roles {
		return fmt.Errorf("line %d: %q is no role: %s", entry.Role.line, entry.Role.text, strings.Join(roleNames[:], ", "))
	}
	where, err := scopeIn(entry, role)
	if err != nil {
		return err
	}
	if p.grants[principal] == nil {
		p.grants[principal] = &[roles]scope{}
	}
	if p.grants[principal][role].granted {
		return fmt.Errorf("line %d: %s has the role %s already; name all namespaces in one grant", entry.Principal.line, principal, role)
	}
	p.grants[principal][role] = where
	return nil
}

// scopeIn reads the namespaces of a grant. A peer's are none of its own: it acts for callers,
// whose grants decide.
func scopeIn(entry grantEntry, role Role) (scope, error) {
	s := scope{granted: true, all: role == Peer, namespaces: map[string]bool{}}
	for _, namespace := range entry.Namespaces {
		switch name := namespace.text; {
		case s.namespaces[name] || s.all && role != Peer:
			return s, fmt.Errorf("line %d: namespace %q is in it already", namespace.line, name)
		case name == everyNamespace && len(s.namespaces) == 0:
			s.all = true
		case role == Peer:
			return s, fmt.Errorf("line %d: a peer acts for callers in all namespaces; leave namespaces out", namespace.line)
		case store.ValidateNamespaceName(name) != nil:
			return s, fmt.Errorf("line %d: %q is no name of a namespace, and not \"*\" alone", namespace.line, name)
		default:
			s.namespaces[name] = true
		}
	}
	if !s.all && len(s.namespaces) == 0 {
		return s, fmt.Errorf("line %d: namespaces are missing; \"*\" is all", entry.Principal.line)
	}
	return s, nil
}
