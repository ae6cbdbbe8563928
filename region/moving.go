package region

import (
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// movesAt is a step of a move that this server sees a namespace at. Who makes the move may have
// stopped long ago, and only that it lasts shows it.
type movesAt struct {
	step, to string
	since    time.Time // it was seen
}

// movesAtNow is empty, but for the time, if the namespace does not move.
func movesAtNow(p store.Placement) movesAt {
	at := movesAt{to: p.Move.To, since: time.Now()}
	switch {
	case p.Move.Phase == store.MoveFrozen:
		at.step = "frozen"
	case p.Move.Phase == store.MoveSealed:
		at.step = "sealed"
	case p.Move.Phase == store.MoveFlipped && p.Rule == placement.Fixed(p.Move.To):
		at.step = "flipped"
	case p.Move.Phase == store.MoveFlipped:
		at.step = "clearing"
	}
	return at
}

// noteMoves keeps since when each namespace has been where it is on its way.
func (r *Region) noteMoves(list []store.Namespace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ns := range list {
		at, before := movesAtNow(ns.Placement), r.moves[ns.Name]
		switch {
		case at.step == "" && before.step == "":
			continue
		case at.step == before.step && at.to == before.to:
			at = before
		}
		r.moves[ns.Name] = at
		r.config.Observer.Moving(ns.Name, at.step, time.Since(at.since))
	}
}

// movesNotice names the namespaces that are on their way.
func (r *Region) movesNotice() (parts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, at := range r.moves {
		if at.step != "" {
			parts = append(parts, fmt.Sprintf("namespace %q %s", name, at.notice(name)))
		}
	}
	slices.Sort(parts)
	return parts
}

func (a movesAt) notice(namespace string) string {
	callers := map[string]string{
		"clearing": "callers see nothing of it",
		"frozen":   "new claims are refused",
		"sealed":   "only repeats and lookups are answered",
		"flipped":  "the new home serves, and the others may not have forgotten it yet",
	}
	again := fmt.Sprintf("idemd region move %s %s", namespace, a.to)
	text := fmt.Sprintf("is on its way to region %q, %s since %s as far as is seen here: %s; if that command does not run any more, run it again: %s",
		a.to, a.step, a.since.UTC().Format(time.RFC3339), callers[a.step], again)
	if a.step == "frozen" || a.step == "sealed" {
		text += ", or give it up with --abandon"
	}
	return text
}
