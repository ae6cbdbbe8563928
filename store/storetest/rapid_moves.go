package storetest

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/store"
)

// RunMoves is [RunRapid] on namespaces that are placed and move: operations of an epoch that is
// not in force, operations that a move stops, and records that are carried.
func RunMoves(t testing.TB, factory Factory) { runMachine(t, factory, (*machine).stepOrMove) }

func (m *machine) stepOrMove(t *rapid.T) {
	m.t = t
	if rapid.IntRange(0, 5).Draw(t, "move") > 0 {
		m.step(t)
		return
	}
	namespace := rapid.SampledFrom(m.keys).Draw(t, "key").Namespace
	for _, phase := range rapid.SampledFrom(walks).Draw(t, "walk") {
		m.place(t, namespace, phase)
		m.stray(t, namespace)
		for range rapid.IntRange(0, 4).Draw(t, "steps") {
			m.amid(t, namespace)
		}
		if phase == store.MoveSealed && rapid.Bool().Draw(t, "carry") {
			m.carry(t, namespace)
		}
	}
}

// walks are ways through a move: to its end, given up after each step, or by who missed a step.
var walks = [][]store.MovePhase{
	{0}, {store.MoveFrozen, 0}, {store.MoveFrozen, store.MoveSealed, 0}, {store.MoveSealed, 0},
	{store.MoveFrozen, store.MoveSealed, store.MoveFlipped, 0}, {store.MoveSealed, store.MoveFlipped}, {store.MoveFlipped, store.MoveSealed, 0},
}

// place gives the namespace its next placement, and lets time pass until it is in force.
func (m *machine) place(t *rapid.T, namespace string, phase store.MovePhase) {
	ns := m.model.spaces[namespace]
	old := ns.placed
	ns.placed = store.Placement{
		Epoch: old.Epoch + 1, Revision: old.Revision + 1 + rapid.Int64Range(0, 1).Draw(t, "revisions"), Rule: "fixed eu",
	}
	if old.Epoch > 0 && phase != store.MoveFlipped && rapid.IntRange(0, 3).Draw(t, "same epoch") > 0 {
		ns.placed.Epoch = old.Epoch
	}
	if phase != 0 {
		ns.placed.Move = store.Move{To: "us", Phase: phase}
	}
	for range rapid.IntRange(1, 2).Draw(t, "times") { // the same again changes nothing
		placed, err := m.inst.PlaceNamespace(m.ctx, namespace, ns.placed)
		if err != nil || placed.Namespace.Placement != ns.placed || at(placed.Now) != m.model.now || placed.InForce.Before(placed.Now) {
			m.t.Fatalf("at %v: PlaceNamespace %+v: %+v, %v", m.model.now, ns.placed, placed, err)
		}
		m.inst.Clock.Advance(placed.InForce.Sub(placed.Now))
		m.model.now = at(placed.InForce)
	}
	m.model.spaces[namespace] = ns
}

// stray is what others do who have not heard of the placement.
func (m *machine) stray(t *rapid.T, namespace string) {
	placed := m.model.spaces[namespace].placed
	older := placed
	older.Rule = "fixed ap"
	older.Revision -= rapid.Int64Range(0, placed.Revision-placed.Epoch).Draw(t, "behind")
	_, err := m.inst.PlaceNamespace(m.ctx, namespace, older)
	m.refusedPlacement("an older placement", err)
	m.refusedPlacement("an import into another move", m.inst.ImportRecords(m.ctx, namespace, placed.Revision-1, nil))
	if placed.Move.Phase != store.MoveSealed {
		m.refusedPlacement("an import without a move", m.inst.ImportRecords(m.ctx, namespace, placed.Revision, nil))
	}
	if phase := placed.Move.Phase; phase != store.MoveSealed && phase != store.MoveFlipped {
		_, err := m.inst.ForgetRecords(m.ctx, namespace, placed.Revision, nil)
		m.refusedPlacement("forgetting without a move", err)
	}
}

func (m *machine) refusedPlacement(what string, err error) {
	m.t.Helper()
	if !errors.Is(err, store.ErrWrongRegion) {
		m.t.Fatalf("%s: %v, want WRONG_REGION", what, err)
	}
}

// amid is one operation amid a move, at times by another epoch.
func (m *machine) amid(t *rapid.T, namespace string) {
	own := slices.DeleteFunc(slices.Clone(m.keys), func(k store.Key) bool { return k.Namespace != namespace })
	key := rapid.SampledFrom(own).Draw(t, "key")
	actions := map[string]func(*rapid.T, store.Key){
		"claim": m.claim, "settle": m.settle, "again": m.again, "look": m.look, "operator": m.operator, "flaw": m.flaw,
		"policy": m.policy, "time": m.time, "upkeep": m.upkeep, "astray": m.astray,
	}
	action := rapid.SampledFrom([]string{
		"claim", "claim", "settle", "settle", "again", "look", "operator", "flaw", "policy", "time", "upkeep", "astray",
	}).Draw(t, "amid")
	actions[action](t, key)
}

// astray sends something by an epoch that is not in force.
func (m *machine) astray(t *rapid.T, key store.Key) {
	h := m.someHolder(t, key)
	kind := rapid.SampledFrom([]opKind{opClaim, opRenew, opComplete, opRelease, opLookup, opResolve, opForce}).Draw(t, "kind")
	o := call{Kind: kind, Key: key, AttemptID: h.attempt, Fence: h.fence, Effect: store.EffectNone, Reason: "because"}
	if kind == opComplete {
		o.Outcome = outcomes.Draw(t, "outcome")
	}
	o.Epoch = rapid.SampledFrom([]int64{0, 1, m.model.spaces[key.Namespace].placed.Epoch + 1}).Draw(t, "epoch")
	m.ask(o)
}

// carry takes the records out of the sealed namespace and brings them back, as to and from
// another store.
func (m *machine) carry(t *rapid.T, namespace string) {
	revision := m.model.spaces[namespace].placed.Revision
	records, err := exportAll(m.ctx, m.inst, namespace)
	if err != nil {
		t.Fatalf("export of %q: %v", namespace, err)
	}
	if rapid.Bool().Draw(t, "forget") {
		if err := forgetAll(m.ctx, m.inst, namespace, revision); err != nil {
			t.Fatalf("ForgetRecords of %q: %v", namespace, err)
		}
		left, err := listAll(m.ctx, m.inst, store.ListRequest{Namespace: namespace})
		if err != nil || len(left) > 0 {
			t.Fatalf("%d records are left of a forgotten namespace, %v", len(left), err)
		}
		m.model.carry(namespace)
	}
	for range rapid.IntRange(1, 2).Draw(t, "imports") {
		if err := m.inst.ImportRecords(m.ctx, namespace, revision, records); err != nil {
			t.Fatalf("ImportRecords of %q: %v", namespace, err)
		}
	}
	m.upkeep(t, store.Key{})
}
