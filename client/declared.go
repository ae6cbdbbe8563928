package client

import "fmt"

// DeclaredPolicy returns the policy that a method's .proto declares. A server that adds
// what only code can say, such as Recover, or changes a part, gives the result to [Method].
func DeclaredPolicy(name string) (Policy, error) {
	m := &method{name: name, descriptor: describe(name)}
	if err := m.declaredInProto(); err != nil {
		return Policy{}, fmt.Errorf("method %s: %w", name, err)
	}
	if !m.guarded {
		return Policy{}, fmt.Errorf("method %s: its .proto does not declare it guarded; write the whole Policy", name)
	}
	return m.policy, nil
}
