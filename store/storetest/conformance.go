package storetest

import "testing"

// Run is the whole suite: the golden scripts of the table, the model with random
// operations, what the interfaces say beside the table, the promises and the faults met
// in the field. Each check gets a fresh instance from the factory and does not sleep; time
// is the instance's Clock.
//
// It runs over anything that is a [store.Backend], a client of a server included, where
// two things are not compared: HeldFor, which is real time, and, if the instance says
// AttemptsHidden, the attempt ids in listed and settled records. Nothing that needs Placements or Members
// is run if it says Unplaced.
func Run(t *testing.T, factory Factory) {
	t.Run("Golden", func(t *testing.T) { RunGolden(t, factory) })
	t.Run("Model", func(t *testing.T) { RunRapid(t, factory) })
	t.Run("Moves", func(t *testing.T) { RunMoves(t, placing(t, factory)) })
	t.Run("Placements", func(t *testing.T) { runChecks(t, placements, placing(t, factory)) })
	t.Run("Members", func(t *testing.T) { runChecks(t, members, placing(t, factory)) })
	t.Run("Contract", func(t *testing.T) { runChecks(t, contract, factory) })
	t.Run("Promises", func(t *testing.T) { runChecks(t, promises, factory) })
	t.Run("Cases", func(t *testing.T) { runChecks(t, cases, factory) })
}

const unplaced = "there are no Placements and Members here: over the wire namespaces are placed by servers alone"

// placing is the factory for what needs Placements or Members. Without them the test is skipped.
func placing(t *testing.T, factory Factory) Factory {
	if factory(t).Unplaced {
		t.Skip(unplaced)
	}
	return factory
}

func runChecks(t *testing.T, checks []check, factory Factory) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, factory) })
	}
}
