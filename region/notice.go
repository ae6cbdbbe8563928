package region

import (
	"fmt"
	"strings"
	"time"
)

// Notice is what an operator should see to; empty if there is nothing.
func (r *Region) Notice() string {
	var parts []string
	if err := r.atHome(); err != nil {
		parts = append(parts, err.Error())
	}
	for p := range r.others() {
		parts = append(parts, p.notice()...)
	}
	for _, k := range r.atlas.Load().list {
		switch {
		case k.dispute != "":
			parts = append(parts, fmt.Sprintf("the placement of namespace %q is disputed: %s", k.ns.Name, k.dispute))
		case k.problem != "":
			parts = append(parts, fmt.Sprintf("namespace %q has no home yet: %s", k.ns.Name, k.problem))
		}
	}
	return strings.Join(parts, "; ")
}

func (p *peer) notice() []string {
	if p.current.Load() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return []string{fmt.Sprintf("region %q has been unreachable for %v: %s", p.name, time.Since(p.since).Round(time.Second), p.reason)}
}
