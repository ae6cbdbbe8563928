package placement

import "github.com/idemd/idemd/store"

// Stage is how far a namespace has got on its way to another region, in the word that operators
// see.
type Stage = string

// The stages, in their order. A move that is given up goes back to Clearing.
const (
	AtRest   Stage = ""
	Clearing Stage = "clearing" // the new home forgets what it has of the keys
	Frozen   Stage = "frozen"
	Sealed   Stage = "sealed"
	Flipped  Stage = "flipped"
)

// Stages are those of a namespace that is not at rest.
var Stages = []Stage{Clearing, Frozen, Sealed, Flipped}

// StageOf is the stage of a namespace with the placement. Its phase is the same before the keys
// leave and once they have arrived, as nobody is refused then: the rule tells.
func StageOf(p store.Placement) Stage {
	switch p.Move.Phase {
	case store.MoveFrozen:
		return Frozen
	case store.MoveSealed:
		return Sealed
	case store.MoveFlipped:
		if p.Rule == Fixed(p.Move.To) {
			return Flipped
		}
		return Clearing
	}
	return AtRest
}
