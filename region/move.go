package region

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// Party is what a move asks of one region's store. All of it can be repeated.
type Party interface {
	// Namespace is the namespace as it is known there.
	Namespace(ctx context.Context, name string) (store.Namespace, error)
	// Place is PlaceNamespace of [store.Placements].
	Place(ctx context.Context, namespace string, p store.Placement) (store.Placed, error)
	// Held counts the attempts that hold a lease.
	Held(ctx context.Context, namespace string, epoch int64) (Held, error)
	// Export gives a page of whole live records of a namespace that is sealed at the revision.
	Export(ctx context.Context, namespace string, revision int64, pageToken string) (Exported, error)
	// Forget has the region forget records of keys whose home by the rule, which is that of a
	// flipped placement of the revision, is elsewhere. It reports whether there may be more.
	Forget(ctx context.Context, namespace string, revision int64) (more bool, err error)
}

// Held is how many attempts hold a lease at Now, the store's clock.
type Held struct {
	Count int
	Now   time.Time
}

// Exported is a page of records. NextPageToken is empty on the last.
type Exported struct {
	Records       []store.Inspection
	NextPageToken string
}

// Mover gives the keys of a namespace another home. It runs in the region they are to go to, and
// keeps nothing: how far a move has got is in the placements that the regions' stores keep, so
// that any Mover goes on with what another one left, and several may be at it.
//
// Every change of a placement is decided by one store, that of the first region of its rule, which
// takes a revision once. Only then do the others get it. So no two regions ever have different
// placements of one revision, whoever moves, abandons or has lost the race; and whoever finds
// that another revision was decided than the one it wanted stops. While that store is away nothing is
// decided: what others made of a move could be at odds with what it has decided and they have not heard.
//
// A move goes through these placements, a revision each:
//
//	clearing  FLIPPED, the old rule   the new home forgets what it has, of an earlier stay
//	frozen    FROZEN                  nothing is granted; leases are waited for
//	sealed    SEALED                  nothing changes; leases run out; records are copied
//	flipped   FLIPPED, fixed TO       the new home serves; the others forget
//	done      no move
//
// To abandon is to go from frozen or sealed to clearing, and from there to where it began. If the new home
// is restored from before the move while it is flipped, it goes from there to sealed once more, under the new
// rule, and back when the records have been copied again.
type Mover struct {
	// Here is the region this runs in, and Local its store.
	Here  string
	Local store.Backend
	// Peers are all other regions, asked in the name of the one who moves.
	Peers map[string]Party
	// Logger gets a line for each step. Nil: slog.Default().
	Logger *slog.Logger
	// Sleep waits, unless the context ends. Nil: by a timer.
	Sleep func(ctx context.Context, d time.Duration) error
}

// MoveRequest says what to move.
type MoveRequest struct {
	Namespace string
	To        string // the region that is to be the home of all its keys
	// Abandon gives up a move that has not reached its new home.
	Abandon bool
	// Patience is how long to wait for attempts that hold a lease, before nobody may renew.
	Patience time.Duration
	Actor    string // for the log
}

// DefaultPatience is that of a request that gives none.
const DefaultPatience = time.Minute

// Step is something that a move has reached. For the names see MoveNamespaceResponse.
type Step struct {
	Name      string
	Detail    string
	Count     int64
	Placement store.Placement
}

// Move carries the namespace, from wherever it is on its way, to where it is asked to go, and
// tells of each step. If it returns an error, calling it again goes on where it stopped.
func (m *Mover) Move(ctx context.Context, req MoveRequest, tell func(Step) error) error {
	v := &move{Mover: m, MoveRequest: req, tell: tell, local: &localParty{m.Local, m.Here}}
	if err := v.check(); err != nil {
		return err
	}
	if err := v.find(ctx); err != nil {
		return err
	}
	if err := v.fits(); err != nil {
		return err
	}
	if v.Abandon {
		return v.raced(v.abandon(ctx))
	}
	if v.now() != placement.AtRest {
		v.detail = fmt.Sprintf("the move was under way, at revision %d; going on", v.current.Revision)
	}
	for !v.done() {
		if err := v.step(ctx); err != nil {
			return v.raced(err)
		}
	}
	return v.reached("done", "")
}

// move is one run of a Mover.
type move struct {
	*Mover
	MoveRequest
	tell  func(Step) error
	local *localParty

	current store.Placement // the newest that was decided
	rule    placement.Rule  // its rule
	missing []string        // regions that were not reached, of a move that is abandoned
	left    []string        // the homes before the flip, if this run has seen it
	last    time.Time       // by the old homes' clocks: when nothing was granted any more
	again   bool            // what the new home had lost was copied again
	detail  string          // for the next step
}

func (v *move) now() placement.Stage { return placement.StageOf(v.current) }

// arrived reports whether the new home is the home.
func (v *move) arrived() bool { return v.rule.String() == placement.Fixed(v.To) }

func (v *move) done() bool { return v.now() == placement.AtRest && v.arrived() }

// step takes the move from one placement to the next.
func (v *move) step(ctx context.Context) error {
	switch v.now() {
	case placement.Clearing:
		return v.clear(ctx, store.MoveFrozen)
	case placement.Frozen:
		return v.freeze(ctx)
	case placement.Sealed:
		if v.arrived() {
			return v.carryAgain(ctx)
		}
		return v.carry(ctx)
	case placement.Flipped:
		return v.finish(ctx)
	}
	return v.begin(ctx)
}

// begin starts a move, if it can end.
func (v *move) begin(ctx context.Context) error {
	if err := v.comparable(ctx); err != nil {
		return err
	}
	return v.decide(ctx, v.next(store.MoveFlipped))
}

// clear makes the new home forget what it has of keys that are at home elsewhere, and goes on to
// the phase.
func (v *move) clear(ctx context.Context, phase store.MovePhase) error {
	if err := v.spread(ctx, v.To); err != nil {
		return err
	}
	if err := v.forget(ctx, v.To); err != nil {
		return err
	}
	return v.decide(ctx, v.next(phase))
}

// freeze lets nothing be granted, and waits for those who hold a lease.
func (v *move) freeze(ctx context.Context) error {
	inForce, err := v.spreadInForce(ctx)
	if err != nil {
		return err
	}
	if err := v.reached("frozen", "nothing is granted; holders may renew, complete and release"); err != nil {
		return err
	}
	if err := v.awaitHeld(ctx, inForce, v.Patience); err != nil {
		return err
	}
	return v.decide(ctx, v.next(store.MoveSealed))
}

// carry copies what the old homes have, once nothing changes there and no lease runs.
func (v *move) carry(ctx context.Context) error {
	inForce, err := v.spreadInForce(ctx)
	if err != nil {
		return err
	}
	if err := v.reached("sealed", "nothing changes; repeats are answered"); err != nil {
		return err
	}
	if err := v.awaitHeld(ctx, inForce, forever); err != nil {
		return err
	}
	if err := v.carryHistory(ctx); err != nil {
		return err
	}
	if err := v.copy(ctx); err != nil {
		return err
	}
	if err := v.awaitClock(ctx); err != nil {
		return err
	}
	if err := v.carryHistory(ctx); err != nil { // a recovery may have begun at an old home since
		return err
	}
	v.left = v.sources()
	next := v.next(store.MoveFlipped)
	next.Epoch++
	next.Rule = placement.Fixed(v.To)
	return v.decide(ctx, next)
}

// finish lets the new home serve, and the others forget.
func (v *move) finish(ctx context.Context) error {
	left := v.left
	if left == nil { // somebody else flipped it
		left = v.others()
	}
	if err := v.spread(ctx, v.To); err != nil {
		return err
	}
	if err := v.reached("flipped", "the new home serves"); err != nil {
		return err
	}
	placed, err := v.placeAll(ctx, left)
	if err != nil {
		return err
	}
	if err := v.awaitInForce(ctx, placed); err != nil { // or a repeat might be told that nothing is known
		return err
	}
	if err := v.takeHistory(ctx, placed); err != nil { // or just now
		return err
	}
	if lost, err := v.hasLost(ctx); err != nil {
		return err
	} else if lost {
		v.detail = "the new home has lost the keys that had come; they are copied again"
		return v.decide(ctx, v.next(store.MoveSealed))
	}
	for _, region := range left {
		if err := v.forget(ctx, region); err != nil {
			return err
		}
	}
	if err := v.reached("forgotten", ""); err != nil {
		return err
	}
	if err := v.decide(ctx, v.next(0)); err != nil {
		return err
	}
	return v.spread(ctx, left...)
}

// reached tells of a step and logs it.
func (v *move) reached(name, detail string) error { return v.tellOf(Step{Name: name, Detail: detail}) }

func (v *move) tellOf(s Step) error {
	if v.detail != "" {
		s.Detail, v.detail = v.detail, ""
	}
	s.Placement = v.current
	logger := v.Logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Info("namespace moves", "namespace", v.Namespace, "to", v.To, "step", s.Name, "count", s.Count,
		"epoch", s.Placement.Epoch, "revision", s.Placement.Revision, "actor", v.Actor)
	return v.tell(s)
}

// sources are the homes that the keys are to leave.
func (v *move) sources() []string {
	return slices.DeleteFunc(v.rule.Regions(), func(region string) bool { return region == v.To })
}

// also is a refusal with more to say than its own text.
func also(err error, text string) error {
	var refused *store.Error
	if !errors.As(err, &refused) {
		return err
	}
	more := *refused
	more.Detail = text + ": " + refused.Error()
	return &more
}
