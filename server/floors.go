package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/store"
)

const (
	// maxFloorCauses is how many recoveries a notice tells apart, maxFloorNames how many namespaces it
	// names of each.
	maxFloorCauses = 3
	maxFloorNames  = 5
	// maxFloorText bounds what an operator wrote, in a notice.
	maxFloorText = 128
)

// floors knows the recovery floors that stand: behind one, what is new is refused until somebody
// lifts it, so somebody should be told. It looks as often as health probes, for all of them at once.
type floors struct {
	store store.Namespaces
	gauge *prometheus.GaugeVec // by namespace

	mu       sync.Mutex
	standing []store.Namespace // by name
}

// look asks the store. What was seen stays if it does not answer.
func (f *floors) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	all, err := f.store.ListNamespaces(ctx)
	if err != nil {
		return
	}
	standing := slices.DeleteFunc(all, func(ns store.Namespace) bool { return ns.RecoveryFloor.IsZero() })
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ns := range standing {
		f.gauge.WithLabelValues(ns.Name).Set(float64(ns.RecoveryFloor.UnixMicro()) / 1e6)
	}
	for _, was := range f.standing {
		if _, still := slices.BinarySearchFunc(standing, was.Name, func(ns store.Namespace, name string) int { return strings.Compare(ns.Name, name) }); !still {
			f.gauge.DeleteLabelValues(was.Name)
		}
	}
	f.standing = standing
}

// notice says which floors stand, by what they are for, in a bounded length. What namespaces there are, and who
// began a recovery, and why, is not for everybody: if it is not to be named, only how many there are is said.
func (f *floors) notice(named bool) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var causes []string
	names := map[string][]string{}
	for i := range f.standing {
		cause := causeOfFloor(&f.standing[i], named)
		if names[cause] == nil {
			causes = append(causes, cause)
		}
		names[cause] = append(names[cause], f.standing[i].Name)
	}
	if len(causes) == 0 {
		return ""
	}
	told := causes[:min(len(causes), maxFloorCauses)]
	rest := len(f.standing)
	var parts []string
	for _, cause := range told {
		rest -= len(names[cause])
		parts = append(parts, cause+" are refused in "+namespacesText(names[cause], named))
	}
	if rest > 0 {
		parts = append(parts, fmt.Sprintf("and of %d more namespaces (idemd recovery status)", rest))
	}
	return strings.Join(parts, "; ") + ": import what is known (idemd recovery import), then idemd recovery lift"
}

// causeOfFloor is what a floor that stands is for.
func causeOfFloor(ns *store.Namespace, named bool) string {
	text := "recovery floor at " + ns.RecoveryFloor.UTC().Format(time.RFC3339)
	if step, begun := ns.Recovering(); begun {
		text = "recovery since " + step.At.UTC().Format(time.RFC3339)
		if named {
			text += fmt.Sprintf(" by %s for %q", clipped(step.Actor), clipped(step.Reason))
		}
	}
	return text + ": unknown keys without an intent time after " + ns.NewerThan().UTC().Format(time.RFC3339Nano)
}

func namespacesText(names []string, named bool) string {
	switch more := len(names) - maxFloorNames; {
	case !named && len(names) == 1:
		return "1 namespace (idemd recovery status names it)"
	case !named:
		return fmt.Sprintf("%d namespaces (idemd recovery status names them)", len(names))
	case len(names) == 1:
		return "namespace " + names[0]
	case more > 0:
		return fmt.Sprintf("namespaces %s and %d more", strings.Join(names[:maxFloorNames], ", "), more)
	}
	return "namespaces " + strings.Join(names, ", ")
}

func clipped(text string) string {
	if len(text) <= maxFloorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxFloorText], "") + "…"
}
