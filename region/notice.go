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
	parts := append(r.ownNotice(true), r.movesNotice()...)
	troubles := r.troubledNow()
	for _, name := range slices.Sorted(maps.Keys(troubles)) {
		parts = append(parts, fmt.Sprintf("namespace %q %s", name, troubles[name]))
	}
	return strings.Join(parts, "; ")
}

// NoticeForAll is the same for whoever may not know what namespaces there are: it says how many something is to
// be done about.
func (r *Region) NoticeForAll() string {
	parts := r.ownNotice(false)
	for _, of := range []struct {
		what string
		n    int
	}{{"are on their way to another region", len(r.movesNotice())}, {"are not the same everywhere, or have no home", len(r.troubledNow())}} {
		if of.n > 0 {
			parts = append(parts, fmt.Sprintf("namespaces that %s: %d (idemd region list names them)", of.what, of.n))
		}
	}
	return strings.Join(parts, "; ")
}

// ownNotice is about the regions themselves. It names namespaces only if it may.
func (r *Region) ownNotice(named bool) (parts []string) {
	if err := r.notHome(named); err != nil {
		parts = append(parts, err.Error())
	}
	for p := range r.others() {
		parts = append(parts, p.notice()...)
	}
	return parts
}

func (p *peer) notice() []string {
	if p.current.Load() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return []string{fmt.Sprintf("region %q has been unreachable for %v: %s", p.name, time.Since(p.since).Round(time.Second), p.reason)}
}
