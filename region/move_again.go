package region

import (
	"context"
	"errors"

	"github.com/idemd/idemd/store"
)

// A new home that is restored from before the move, while others have not forgotten the keys yet, knows
// nothing of them and serves them. Before anybody forgets, they are copied once more: which region was
// their home is not known any more, so all are asked, and of a key the record counts that knows most.

// hasLost reports whether the new home has missed the move of the present epoch, and the records have not
// been copied again.
func (v *move) hasLost(ctx context.Context) (bool, error) {
	if v.again {
		return false, nil
	}
	ns, err := v.known(ctx, v.To)
	return err == nil && missed(ns, v.current), err
}

// carryAgain copies what the others have into the new home, where nothing changes meanwhile.
func (v *move) carryAgain(ctx context.Context) error {
	placed, err := v.placeAll(ctx, v.others())
	if err != nil {
		return err
	}
	here, err := v.placeAt(ctx, v.To, v.current)
	if err != nil {
		return err
	}
	if err := v.reached("sealed", "nothing changes; repeats are answered"); err != nil {
		return err
	}
	if err := v.awaitInForce(ctx, map[string]store.Placed{v.To: here}); err != nil {
		return err
	}
	if err := v.awaitHeld(ctx, placed, forever); err != nil {
		return err
	}
	if err := v.copy(ctx); err != nil {
		return err
	}
	if err := v.awaitClock(ctx); err != nil {
		return err
	}
	v.left, v.again = nil, true
	return v.decide(ctx, v.next(store.MoveFlipped))
}

// copiedFrom are the regions whose records are copied.
func (v *move) copiedFrom() []string {
	if v.arrived() {
		return v.others()
	}
	return v.sources()
}

// wants reports whether a region's record of a key is what the new home is to know. A region may have
// records of keys that live elsewhere, of a move that was abandoned: they say nothing any more.
func (v *move) wants(ctx context.Context, region string, rec *store.Record, copied bool) (bool, error) {
	if !v.arrived() {
		return !copied && v.rule.Home(rec.Key) == region, nil
	}
	own, err := v.Local.InspectRecord(ctx, rec.Key)
	if errors.Is(err, store.ErrKeyNotFound) {
		return true, nil
	}
	return err == nil && knowsMore(rec, own.Record), err
}

// knowsMore reports whether a record is of a later attempt, or says of the same one that it has ended,
// and how, where the other does not.
func knowsMore(a, b *store.Record) bool {
	if a.Fence != b.Fence {
		return a.Fence > b.Fence
	}
	ended := func(r *store.Record) int {
		switch r.State {
		case store.StateCompleted:
			return 2
		case store.StateReleased:
			return 1
		}
		return 0
	}
	return ended(a) > ended(b)
}
