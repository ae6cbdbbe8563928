package region

import (
	"fmt"
	"maps"
	"slices"
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
	parts = append(parts, r.movesNotice()...)
	troubles := r.troubledNow()
	for _, name := range slices.Sorted(maps.Keys(troubles)) {
		parts = append(parts, fmt.Sprintf("namespace %q %s", name, troubles[name]))
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
