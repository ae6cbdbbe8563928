package storetest

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/idemd/idemd/store"
)

// move sends what places a namespace and carries its records.
func (r *goldenRun) move(namespace string, cmd goldenCommand) string {
	r.t.Helper()
	ctx, revision := r.t.Context(), cmp.Or(number(cmd, "revision"), r.placed.Revision)
	var err error
	switch cmd.verb {
	case "place":
		p := r.placement(cmd)
		if _, err = r.inst.PlaceNamespace(ctx, namespace, p); err == nil {
			r.placed = p
		}
	case "import":
		err = r.inst.ImportRecords(ctx, namespace, revision, []store.Inspection{r.exported[cmd.text("name")]})
	case "forget":
		err = forgetAll(ctx, r.inst, namespace, revision)
	}
	if err != nil {
		return reasonOf(err)
	}
	return "ok"
}

func (r *goldenRun) placement(cmd goldenCommand) store.Placement {
	p := store.Placement{Epoch: number(cmd, "epoch"), Revision: number(cmd, "revision"), Rule: "fixed eu"}
	if cmd.has("rule") {
		p.Rule = cmd.text("rule")
	}
	if cmd.has("phase") {
		p.Move = store.Move{To: "us", Phase: goldenPhases[cmd.text("phase")]}
	}
	if cmd.has("to") {
		p.Move.To = cmd.text("to")
	}
	return p
}

// epoch is the one by which an operation is sent.
func (r *goldenRun) epoch(cmd goldenCommand) int64 {
	if cmd.has("epoch") {
		return number(cmd, "epoch")
	}
	return r.placed.Epoch
}

// number is zero if the argument is not there; the parser has checked any other.
func number(cmd goldenCommand, name string) int64 {
	n, _ := strconv.ParseInt(cmd.text(name), 10, 64)
	return n
}

// places says that the section cannot be played without Placements. Nor do epochs cross the
// wire: servers set them.
func (s *goldenSet) places(section *goldenSection) bool {
	if section.kind == goldenCondition && s.places(s.setups[section.name]) {
		return true
	}
	for cmd := range section.commands() {
		if cmd.has("epoch") || slices.Contains(placingVerbs, cmd.verb) || cmd.verb == "use" && s.places(s.setups[cmd.text("setup")]) {
			return true
		}
	}
	return false
}
