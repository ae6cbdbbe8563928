package region

import (
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// movesAt is a stage of a move that this server sees a namespace at. Who makes the move may have
// stopped long ago, and only that it lasts shows it.
type movesAt struct {
	stage placement.Stage
	to    string
	came  bool      // the keys have arrived there before, so that the move is not given up
	since time.Time // it was seen
}

// noteMoves keeps since when each namespace has been where it is on its way.
func (r *Region) noteMoves(list []store.Namespace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ns := range list {
		p := ns.Placement
		at, before := movesAt{placement.StageOf(p), p.Move.To, p.Rule == placement.Fixed(p.Move.To), time.Now()}, r.moves[ns.Name]
		switch {
		case at.stage == placement.AtRest && before.stage == placement.AtRest:
			continue
		case at.stage == before.stage && at.to == before.to && at.came == before.came:
			at = before
		}
		r.moves[ns.Name] = at
		r.config.Observer.Moving(ns.Name, at.stage, time.Since(at.since))
	}
}

// movesNotice names the namespaces that are on their way.
func (r *Region) movesNotice() (parts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, at := range r.moves {
		if at.stage != placement.AtRest {
			parts = append(parts, fmt.Sprintf("namespace %q %s", name, at.notice(name)))
		}
	}
	slices.Sort(parts)
	return parts
}

func (a movesAt) notice(namespace string) string {
	callers := map[placement.Stage]string{
		placement.Clearing: "callers see nothing of it",
		placement.Frozen:   "new claims are refused",
		placement.Sealed:   "only of completed keys anything is said",
		placement.Flipped:  "the new home serves, and the others may not have forgotten it yet",
	}
	again := fmt.Sprintf("idemd region move %s %s", namespace, a.to)
	text := fmt.Sprintf("is on its way to region %q, %s since %s as far as is seen here: %s; if that command does not run any more, run it again: %s",
		a.to, a.stage, a.since.UTC().Format(time.RFC3339), callers[a.stage], again)
	if !a.came && (a.stage == placement.Frozen || a.stage == placement.Sealed) {
		text += ", or give it up with --abandon"
	}
	return text
}
