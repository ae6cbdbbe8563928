package sqlstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

const moving = "moving"

// placed makes namespace "moving" with the first placement.
func (r *rig) placed(s *Store) {
	r.t.Helper()
	_, err := s.CreateNamespace(r.t.Context(), store.Namespace{Name: moving, Retention: time.Hour})
	r.must(err)
	r.place(s, 1, 1, 0)
}

func (r *rig) place(s *Store, epoch, revision int64, phase store.MovePhase) store.Placed {
	r.t.Helper()
	placed, err := s.PlaceNamespace(r.t.Context(), moving, placementOf(epoch, revision, phase))
	r.must(err)
	return placed
}

func placementOf(epoch, revision int64, phase store.MovePhase) store.Placement {
	p := store.Placement{Epoch: epoch, Revision: revision, Rule: "fixed us"}
	if phase != 0 {
		p.Move = store.Move{To: "us", Phase: phase}
	}
	return p
}

// held is a key that an attempt holds.
type held struct {
	key   store.Key
	fence int64
}

func (r *rig) hold(s *Store, epoch int64, id string) held {
	r.t.Helper()
	key := store.Key{Namespace: moving, ID: id}
	return held{key, r.grant(s, store.ClaimRequest{Key: key, AttemptID: "a", Epoch: epoch})}
}

// operations are all that can be done with a key that is held by attempt "a" under an epoch.
func (r *rig) operations(s *Store, h held, epoch int64) map[string]error {
	r.t.Helper()
	ctx, errs := r.t.Context(), map[string]error{}
	_, errs["repeat"] = s.Claim(ctx, store.ClaimRequest{Key: h.key, AttemptID: "a", Epoch: epoch})
	_, errs["claim of another"] = s.Claim(ctx, store.ClaimRequest{Key: h.key, AttemptID: "b", Epoch: epoch})
	_, errs["lookup"] = s.Lookup(ctx, store.LookupRequest{Key: h.key, Epoch: epoch})
	_, errs["first claim"] = s.Claim(ctx, store.ClaimRequest{Key: store.Key{Namespace: moving, ID: h.key.ID + "-fresh"}, AttemptID: "a", Epoch: epoch})
	_, errs["renew"] = s.Renew(ctx, store.RenewRequest{Key: h.key, AttemptID: "a", Fence: h.fence, Lease: time.Minute, Epoch: epoch})
	_, errs["late complete"] = s.Complete(ctx, store.CompleteRequest{Key: h.key, AttemptID: "z", Fence: h.fence - 1, Outcome: &store.Outcome{}, Epoch: epoch})
	_, errs["force release"] = s.ForceRelease(ctx, store.ForceReleaseRequest{Key: h.key, Fence: h.fence, Actor: "op", Reason: "test", Epoch: epoch})
	_, errs["resolve"] = s.Resolve(ctx, store.ResolveRequest{Key: h.key, AnyFence: true, Actor: "op", Reason: "test", Epoch: epoch})
	return errs
}

func (r *rig) completeHeld(s *Store, h held, epoch int64) error {
	_, err := s.Complete(r.t.Context(), store.CompleteRequest{Key: h.key, AttemptID: "a", Fence: h.fence, Outcome: &store.Outcome{Body: []byte("done")}, Epoch: epoch})
	return err
}

func (r *rig) releaseHeld(s *Store, h held, epoch int64) error {
	_, err := s.Release(r.t.Context(), store.ReleaseRequest{Key: h.key, AttemptID: "a", Fence: h.fence, Effect: store.EffectNone, Epoch: epoch})
	return err
}

// settle ends the attempts that hold two keys.
func (r *rig) settle(s *Store, completed, released held, epoch int64) map[string]error {
	return map[string]error{"complete": r.completeHeld(s, completed, epoch), "release": r.releaseHeld(s, released, epoch)}
}

// unchanged checks that a record is as it was while f ran.
func (r *rig) unchanged(s *Store, key store.Key, f func()) {
	r.t.Helper()
	inspect := func() store.Inspection {
		in, err := s.InspectRecord(r.t.Context(), key)
		r.must(err)
		in.Now = time.Time{}
		return in
	}
	before := inspect()
	f()
	wantEqual(r.t, "the record", *inspect().Record, *before.Record)
	wantEqual(r.t, "its events", inspect().Events, before.Events)
}

// wantAll checks that each operation is refused as it must; those not named as with other.
func wantAll(t *testing.T, what string, errs map[string]error, other error, want map[string]error) {
	t.Helper()
	for name, err := range errs {
		expected, named := want[name]
		if !named {
			expected = other
		}
		if !errors.Is(err, expected) || expected == nil && err != nil {
			t.Errorf("%s, %s: want %v, got %v", what, name, expected, err)
		}
	}
}

// What was sent by another epoch is refused, also where it would have been the common path.
func TestOtherEpochIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	h, released := r.hold(s, 1, "held"), r.hold(s, 1, "released")
	r.place(s, 2, 2, 0)
	for _, epoch := range []int64{0, 1, 3} {
		what := fmt.Sprintf("epoch %d of 2", epoch)
		r.unchanged(s, h.key, func() { wantAll(t, what, r.operations(s, h, epoch), store.ErrWrongRegion, nil) })
		r.unchanged(s, released.key, func() { wantAll(t, what, r.settle(s, h, released, epoch), store.ErrWrongRegion, nil) })
	}
	wantAll(t, "the epoch", r.settle(s, h, released, 2), nil, nil)
}

// While a namespace is sealed no record changes and nothing is said of what is held, and while it is frozen nothing is granted.
func TestMoveStopsChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	h, done, released := r.hold(s, 1, "held"), r.hold(s, 1, "done"), r.hold(s, 1, "released")
	r.place(s, 1, 2, store.MoveSealed)
	r.unchanged(s, h.key, func() { wantAll(t, "sealed", r.operations(s, h, 1), store.ErrNamespaceMoving, nil) })
	r.unchanged(s, done.key, func() { wantAll(t, "sealed", r.settle(s, done, released, 1), store.ErrNamespaceMoving, nil) })
	r.place(s, 1, 3, store.MoveFrozen)
	wantAll(t, "frozen", r.settle(s, done, released, 1), nil, nil)
	wantAll(t, "frozen", r.operations(s, h, 1), nil, map[string]error{"first claim": store.ErrNamespaceMoving, "late complete": store.ErrStaleFence})
}

// A replica slept while a namespace was placed anew, and its own clock did not count that. By
// the time the placement is in force it does nothing by the old one, and answers nothing.
func TestOldCopyOfPlacement(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	awake, slept := r.replica(), r.replica()
	r.placed(awake)
	h, done, released := r.hold(awake, 1, "held"), r.hold(awake, 1, "done"), r.hold(awake, 1, "released")
	revision := int64(1)
	sleep := func(epoch int64, phase store.MovePhase) {
		t.Helper()
		r.must(slept.catalog.refresh(t.Context()))
		revision++
		r.set(r.place(awake, epoch, revision, phase).InForce.UnixMicro())
	}
	renew := func(s *Store) error {
		_, err := s.Renew(t.Context(), store.RenewRequest{Key: h.key, AttemptID: "a", Fence: h.fence, Lease: 10 * time.Minute, Epoch: 1})
		return err
	}
	// Each operation wakes the replica up.
	for what, op := range map[string]func() error{
		"complete": func() error { return r.completeHeld(slept, done, 1) },
		"release":  func() error { return r.releaseHeld(slept, released, 1) },
		"renew":    func() error { return renew(slept) },
	} {
		revision++
		r.place(awake, 1, revision, 0)
		r.must(renew(awake))
		sleep(1, store.MoveSealed)
		wantError(t, what+" on waking up after the seal", op(), store.ErrNamespaceMoving)
	}
	sleep(1, store.MoveFrozen)
	_, err := slept.Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: moving, ID: "new"}, AttemptID: "a", Epoch: 1})
	wantError(t, "a claim on waking up after the freeze", err, store.ErrNamespaceMoving)
	epoch := int64(1)
	for what, op := range map[string]func(epoch int64) error{
		"lookup": func(epoch int64) error {
			_, err := slept.Lookup(t.Context(), store.LookupRequest{Key: h.key, Epoch: epoch})
			return err
		},
		"repeat": func(epoch int64) error {
			_, err := slept.Claim(t.Context(), store.ClaimRequest{Key: h.key, AttemptID: "a", Epoch: epoch})
			return err
		},
	} {
		r.must(slept.catalog.refresh(t.Context()))
		r.must(op(epoch))
		sleep(epoch+1, store.MoveFlipped)
		wantError(t, what+" on waking up after the flip", op(epoch), store.ErrWrongRegion)
		epoch++
	}
}

// Placing it again as it is changes nothing, and counts anew.
func TestPlaceNamespace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.placed(s)
	first := r.place(s, 1, 2, store.MoveFrozen)
	wantEqual(t, "in force", first.InForce.Sub(first.Now), copyLag+s.opts.Timing.window())
	r.advance(time.Minute)
	second := r.place(s, 1, 2, store.MoveFrozen)
	wantEqual(t, "now", second.Now, r.now().UTC())
	wantEqual(t, "placement", second.Namespace.Placement, first.Namespace.Placement)
	_, err := s.PlaceNamespace(t.Context(), moving, placementOf(1, 2, 0))
	wantError(t, "another of this revision", err, store.ErrWrongRegion)
	_, err = s.PlaceNamespace(t.Context(), "nowhere", placementOf(1, 2, 0))
	wantError(t, "no namespace", err, store.ErrNamespaceUnknown)
	changed := second.Namespace
	changed.Retention = 30 * time.Minute
	_, err = s.UpdateNamespace(t.Context(), changed)
	wantError(t, "settings during a move", err, store.ErrNamespaceMoving)
	abandoned := r.place(s, 1, 3, 0)
	_, err = s.UpdateNamespace(t.Context(), changed)
	r.must(err)
	got, err := s.GetNamespace(t.Context(), moving)
	r.must(err)
	wantEqual(t, "placement after an update", got.Placement, abandoned.Namespace.Placement)
	wantEqual(t, "retention after an update", got.Retention, changed.Retention)
}
