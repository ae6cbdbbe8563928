package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

var errCrashed = errors.New("crashed")

// finishMove runs the mover until it succeeds.
func (w *moveWorld) finishMove(req MoveRequest) {
	for range 20 {
		if err := w.mover(req.To, func() error { return nil }).Move(w.t.Context(), req, quiet); err == nil {
			return
		} else if !errors.Is(err, store.ErrUnavailable) {
			w.t.Fatal(err)
		}
		w.advance(time.Second)
	}
	w.t.Fatal("the move does not end")
}

// checkArrived fails unless the regions agree on the new home, and only it has records.
func (w *moveWorld) checkArrived(to string) {
	w.t.Helper()
	want := w.placementIn(to)
	if want.Rule != "fixed "+to || want.Move != (store.Move{}) {
		w.t.Fatalf("the move is over, and the placement is %+v", want)
	}
	for _, name := range worldRegions {
		page, err := w.stores[name].ListRecords(w.t.Context(), store.ListRequest{Namespace: movedNamespace})
		if err != nil {
			w.t.Fatal(err)
		}
		if name != to && len(page.Records) > 0 {
			w.t.Fatalf("region %s still has %d records", name, len(page.Records))
		}
	}
}

// Movers that crash, several at once, and one that abandons, while callers go on and requests
// arrive late and twice: no promise is broken at any step, and whoever runs it again ends it.
func TestMoveByChance(t *testing.T) {
	rules := []string{"fixed us", "prefix a-=eu *=us", "spread ap eu us", "prefix a-=ap *=eu"}
	seeds := 1500
	if testing.Short() {
		seeds = 60
	}
	for seed := range uint64(seeds) {
		w := newMoveWorld(t, seed, rules[seed%uint64(len(rules))], 50*time.Second)
		moveByChance(w)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func moveByChance(w *moveWorld) {
	serial := 0
	moving := func(to string, abandon bool) func(a *actor) {
		return func(a *actor) {
			for range w.rand.IntN(30) {
				a.wait()
			}
			step := func() error {
				a.wait()
				if w.rand.IntN(30) == 0 {
					return errCrashed
				}
				return nil
			}
			here := to
			if abandon {
				here = worldRegions[w.rand.IntN(len(worldRegions))]
			}
			m := w.mover(here, step)
			for _, region := range worldRegions {
				if abandon && region != here && w.rand.IntN(4) == 0 {
					m.Peers[region] = awayParty{}
				}
			}
			_ = m.Move(context.Background(), MoveRequest{Namespace: movedNamespace, To: to, Abandon: abandon, Patience: 3 * time.Second}, quiet)
		}
	}
	calling := func(a *actor) {
		r := &router{w: w, map_: w.placementIn("us")}
		for range 120 {
			serial++
			r.act(serial)
			w.advance(time.Duration(w.rand.IntN(800)) * time.Millisecond)
			a.wait()
		}
	}
	late := func(a *actor) {
		for range 100 {
			a.wait()
			if n := len(w.ghosts); n > 0 && w.rand.IntN(3) == 0 {
				i := w.rand.IntN(n)
				w.ghosts[i]()
				w.ghosts = slices.Delete(w.ghosts, i, i+1)
			}
		}
	}
	other := "eu"
	if w.rand.IntN(4) == 0 {
		other = "ap"
	}
	w.turns(w.checkGrants, calling, calling, late, moving("eu", false), moving(other, false), moving("eu", w.rand.IntN(2) == 0), moving("eu", w.rand.IntN(3) == 0))

	to := w.unfinished("eu")
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: to})
	w.checkArrived(to)
	r := &router{w: w, map_: w.placementIn(to)}
	for range 60 {
		serial++
		r.act(serial)
		w.advance(time.Duration(w.rand.IntN(800)) * time.Millisecond)
	}
}

// unfinished is where the namespace is on its way to, as far as any region knows; to if it rests.
func (w *moveWorld) unfinished(to string) string {
	var newest store.Placement
	for _, name := range worldRegions {
		if p := w.placementIn(name); p.Revision > newest.Revision {
			newest = p
		}
	}
	if newest.Move.To != "" {
		return newest.Move.To
	}
	return to
}

// A mover that crashes before or behind any request, and the one that goes on in its place at
// any later one, leave nothing that a third cannot end.
func TestMoveCrashesAnywhere(t *testing.T) {
	stride := 3
	if testing.Short() {
		stride = 12
	}
	for _, abandon := range []bool{false, true} {
		for first := 1; ; first++ {
			ended := false
			for second := 1; ; second += stride {
				a, b := crashTwice(t, first, second, abandon)
				ended = a
				if b {
					break
				}
			}
			if ended {
				break
			}
		}
	}
}

// crashTwice reports whether the first and the second mover ended without a crash.
func crashTwice(t *testing.T, first, second int, abandon bool) (bool, bool) {
	w := newMoveWorld(t, uint64(first*1000+second), "prefix a-=ap *=us", 10*time.Second)
	r := &router{w: w, map_: w.placementIn("us")}
	for i := range 40 {
		r.act(i)
	}
	req := MoveRequest{Namespace: movedNamespace, To: "eu", Patience: time.Second}
	crashed := func(req MoveRequest, at int) bool {
		steps := 0
		err := w.mover("eu", func() error {
			w.checkGrants()
			if steps++; steps == at {
				return errCrashed
			}
			return nil
		}).Move(t.Context(), req, quiet)
		if err != nil && !errors.Is(err, errCrashed) && !errors.Is(err, store.ErrInvalidArgument) {
			t.Fatalf("crash at %d and %d: %v", first, second, err)
		}
		return errors.Is(err, errCrashed)
	}
	a := crashed(req, first)
	again := req
	again.Abandon = abandon
	b := crashed(again, second)
	w.finishMove(req)
	w.checkArrived("eu")
	for i := range 40 {
		r.act(1000 + i)
	}
	return !a, !b
}

// crashAt runs a move up to a step.
func (w *moveWorld) crashAt(step string, req MoveRequest) {
	w.t.Helper()
	err := w.mover(req.To, func() error { return nil }).Move(w.t.Context(), req, func(s Step) error {
		if s.Name == step {
			return errCrashed
		}
		return nil
	})
	if !errors.Is(err, errCrashed) {
		w.t.Fatalf("the move did not come to %q: %v", step, err)
	}
}

// steps runs a move and returns its steps, waits left out.
func (w *moveWorld) steps(req MoveRequest, here string) ([]string, error) {
	var steps []string
	err := w.mover(here, func() error { return nil }).Move(w.t.Context(), req, func(s Step) error {
		text := s.Name
		if s.Count > 0 {
			text = fmt.Sprintf("%s %d", s.Name, s.Count)
		}
		steps = append(steps, text)
		return nil
	})
	return steps, err
}

func (w *moveWorld) claim(region, id, attempt string, epoch int64) store.ClaimAnswer {
	w.t.Helper()
	answer, err := w.stores[region].Claim(w.t.Context(), store.ClaimRequest{
		Key: store.Key{Namespace: movedNamespace, ID: id}, AttemptID: attempt, Epoch: epoch,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

func (w *moveWorld) complete(region, id, attempt string, fence, epoch int64) store.CompleteAnswer {
	w.t.Helper()
	answer, err := w.stores[region].Complete(w.t.Context(), store.CompleteRequest{
		Key: store.Key{Namespace: movedNamespace, ID: id}, AttemptID: attempt, Fence: fence, Epoch: epoch, Outcome: &store.Outcome{Body: []byte(id)},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

func TestMoveTellsItsSteps(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	for i := range 1500 {
		id := fmt.Sprint(i)
		w.complete("us", id, "a", w.claim("us", id, "a", 1).Granted.Fence, 1)
	}
	w.claim("us", "held", "a", 1)
	req := MoveRequest{Namespace: movedNamespace, To: "eu"}
	steps, err := w.steps(req, "eu")
	want := []string{"frozen", "waiting 1", "sealed", "copied 1000", "copied 1501", "flipped", "forgotten", "done"}
	if err != nil || !slices.Equal(steps, want) {
		t.Fatalf("steps %q, %v, want %q", steps, err, want)
	}
	if steps, err := w.steps(req, "eu"); err != nil || !slices.Equal(steps, []string{"done"}) {
		t.Fatalf("again: %q, %v", steps, err)
	}
}

// Whoever holds a lease may renew while patience lasts, and no longer; then it is waited for the
// end of the lease.
func TestMoveOutlastsARenewedLease(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	fence := w.claim("us", "held", "a", 1).Granted.Fence
	m := w.mover("eu", func() error { return nil })
	plain := m.Sleep
	renewed, end := 0, time.Time{}
	m.Sleep = func(ctx context.Context, d time.Duration) error {
		answer, err := w.stores["us"].Renew(ctx, store.RenewRequest{Key: store.Key{Namespace: movedNamespace, ID: "held"}, AttemptID: "a", Fence: fence, Epoch: 1})
		if err == nil {
			renewed, end = renewed+1, answer.LeaseExpiresAt
		} else if !errors.Is(err, store.ErrNamespaceMoving) && !errors.Is(err, store.ErrLeaseExpired) {
			t.Errorf("renewing while sealed: %v", err)
		}
		return plain(ctx, d)
	}
	var sealedAt, flippedAt time.Time
	err := m.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "eu", Patience: 8 * time.Second}, func(s Step) error {
		switch s.Name {
		case "sealed":
			sealedAt = w.clocks["us"].Wall()
		case "flipped":
			flippedAt = w.clocks["us"].Wall()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if renewed == 0 || sealedAt.Before(end.Add(-6*time.Second)) || flippedAt.Before(end) {
		t.Fatalf("%d renewals up to %v, sealed at %v, flipped at %v", renewed, end, sealedAt, flippedAt)
	}
}

// Of the clocks of two regions either may be ahead. Fences grow, and no outcome is forgotten
// early, also if the new home's clock is ahead by more than the retention.
func TestMoveBetweenClocksThatAreApart(t *testing.T) {
	for _, ahead := range []time.Duration{-50 * time.Second, 0, 50 * time.Second, 20 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			w := newMoveWorld(t, 1, "fixed us", 0)
			w.advance(time.Hour)
			region := "eu"
			if ahead < 0 {
				region = "us"
			}
			w.clocks[region].Advance(ahead.Abs())
			w.offset[region] += ahead.Abs()
			last := w.claim("us", "done", "a", 1).Granted.Fence
			until := w.trueTime("us", w.complete("us", "done", "a", last, 1).ExpiresAt)
			freed := w.claim("us", "freed", "a", 1).Granted.Fence
			w.advance(6 * time.Second)
			w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
			if g := w.claim("eu", "new", "a", 2).Granted; g == nil || g.Fence <= freed {
				t.Errorf("a new key is granted with %+v after fence %d", g, freed)
			}
			if g := w.claim("eu", "freed", "b", 2).Granted; g == nil || g.Fence <= freed || !g.Unsettled {
				t.Errorf("a lapsed key is granted with %+v after fence %d", g, freed)
			}
			w.advance(until - w.elapsed - time.Microsecond)
			if c := w.claim("eu", "done", "b", 2).Completed; c == nil {
				t.Error("an outcome was forgotten before its retention ended")
			}
		})
	}
}

func TestMoveRefusesAClockThatIsFarBehind(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	w.clocks["us"].Advance(2 * time.Minute)
	_, err := w.steps(MoveRequest{Namespace: movedNamespace, To: "eu"}, "eu")
	if !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), "clock") {
		t.Fatalf("got %v", err)
	}
	if p := w.placementIn("us"); p.Revision != 1 {
		t.Fatalf("the placement was changed: %+v", p)
	}
}

// setFloor has the region's store refuse what it may have forgotten until now.
func (w *moveWorld) setFloor(region string) {
	w.t.Helper()
	ns, err := w.stores[region].GetNamespace(w.t.Context(), movedNamespace)
	if err != nil {
		w.t.Fatal(err)
	}
	ns.RecoveryFloor = w.clocks[region].Wall()
	if _, err := w.stores[region].UpdateNamespace(w.t.Context(), ns); err != nil {
		w.t.Fatal(err)
	}
}

// What an old home may have forgotten stays forgotten: the recovery floor moves along.
func TestMoveCarriesTheRecoveryFloor(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	w.setFloor("us")
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
	_, err := w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: movedNamespace, ID: "1"}, AttemptID: "a", Epoch: 2})
	if !errors.Is(err, store.ErrUnknownHistory) {
		t.Fatalf("a key that may have been forgotten: %v, want UNKNOWN_HISTORY", err)
	}
}

// A recovery that begins at an old home while the records are copied, or while the move is flipped, is
// one of the new home.
func TestMoveCarriesARecoveryThatBeginsMeanwhile(t *testing.T) {
	for _, at := range []string{"frozen", "sealed", "copied", "flipped"} {
		w := newMoveWorld(t, 1, "fixed us", 0)
		err := w.mover("eu", func() error { return nil }).Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "eu"}, func(s Step) error {
			if s.Name != at {
				return nil
			}
			_, err := w.stores["us"].BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: w.clocks["us"].Wall().Add(-time.Second), Actor: "a", Reason: "failed over"})
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", at, err)
		}
		_, err = w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: movedNamespace, ID: "1"}, AttemptID: "a", Epoch: 2})
		if !errors.Is(err, store.ErrUnknownHistory) {
			t.Errorf("begun when it was %s, a key that may have been forgotten: %v, want UNKNOWN_HISTORY", at, err)
		}
		ns, err := w.stores["eu"].GetNamespace(t.Context(), movedNamespace)
		if err != nil || len(ns.Recovery) != 1 || ns.Recovery[0].Reason != "failed over" {
			t.Errorf("begun when it was %s: %+v, %v", at, ns.Recovery, err)
		}
	}
}

// A move that is given up leaves no floor where other keys of the namespace live.
func TestMoveThatIsAbandonedLeavesNoFloor(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=eu *=us", 0)
	w.setFloor("us")
	req := MoveRequest{Namespace: movedNamespace, To: "eu"}
	w.crashAt("copied", req)
	abandon := req
	abandon.Abandon = true
	if _, err := w.steps(abandon, "eu"); err != nil {
		t.Fatal(err)
	}
	claim := func(epoch int64) error {
		_, err := w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: movedNamespace, ID: "1", Entity: "a-1"}, AttemptID: "x", Epoch: epoch})
		return err
	}
	if err := claim(1); err != nil {
		t.Errorf("a key that never moved: %v", err)
	}
	w.finishMove(req)
	if err := claim(2); err != nil {
		t.Errorf("a key that is known: %v", err)
	}
	_, err := w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: movedNamespace, ID: "1"}, AttemptID: "x", Epoch: 2})
	if !errors.Is(err, store.ErrUnknownHistory) {
		t.Errorf("once it has moved: %v, want UNKNOWN_HISTORY", err)
	}
}

func TestMoveRefusesOtherSettings(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	ns, err := w.stores["us"].GetNamespace(t.Context(), movedNamespace)
	if err != nil {
		t.Fatal(err)
	}
	ns.Retention = time.Hour
	if _, err := w.stores["us"].UpdateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	if _, err := w.steps(MoveRequest{Namespace: movedNamespace, To: "eu"}, "eu"); !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), "settings") {
		t.Fatalf("got %v", err)
	}
}

// A tier is fixed: to set it again is no advice.
func TestMoveRefusesAnotherTier(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	w.stores["eu"] = storetest.NewMemory(w.clocks["eu"])
	ns := store.Namespace{Name: movedNamespace, Tier: store.TierDay, Retention: worldRetention, Lease: 5 * time.Second, MaxAttempt: 30 * time.Second}
	if _, err := w.stores["eu"].CreateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	if _, err := w.stores["eu"].PlaceNamespace(t.Context(), movedNamespace, w.placementIn("us")); err != nil {
		t.Fatal(err)
	}
	_, err := w.steps(MoveRequest{Namespace: movedNamespace, To: "eu"}, "eu")
	if !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), "a tier is fixed") || strings.Contains(err.Error(), "namespace set") {
		t.Fatalf("got %v", err)
	}
}

// Copies of an abandoned move do not count when the move is made again.
func TestMoveAgainAfterAnAbandonedOne(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=eu *=us", 0)
	late := w.claim("us", "late", "a", 1).Granted.Fence // its outcome comes between the moves
	w.advance(6 * time.Second)
	req := MoveRequest{Namespace: movedNamespace, To: "eu"}
	w.crashAt("copied", req)
	abandoning := req
	abandoning.Abandon = true
	if steps, err := w.steps(abandoning, "us"); err != nil || !slices.Equal(steps, []string{"abandoned"}) {
		t.Fatalf("abandoned: %q, %v", steps, err)
	}
	w.complete("us", "late", "a", late, 1)

	w.finishMove(req)
	if c := w.claim("eu", "late", "b", 2).Completed; c == nil {
		t.Error("the outcome is lost")
	}
}

// Copies that a region has of keys that live elsewhere do not come back to where these live.
func TestMoveLeavesCopiesOfAnAbandonedMove(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=eu *=us", 0)
	key := store.Key{Namespace: movedNamespace, ID: "1", Entity: "a-1"}
	answer, err := w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.advance(6 * time.Second)
	req := MoveRequest{Namespace: movedNamespace, To: "us"}
	w.crashAt("copied", req)
	abandoning := req
	abandoning.Abandon = true
	if _, err := w.steps(abandoning, "us"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.stores["eu"].Complete(t.Context(), store.CompleteRequest{
		Key: key, AttemptID: "a", Fence: answer.Granted.Fence, Epoch: 1, Outcome: &store.Outcome{Body: []byte("done")},
	}); err != nil {
		t.Fatal(err)
	}
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
	found, err := w.stores["eu"].Lookup(t.Context(), store.LookupRequest{Key: key, Epoch: 2})
	if err != nil || found.State != store.StateCompleted {
		t.Fatalf("the key is %+v, %v, and was completed", found, err)
	}
}

// A key that was settled after a move was abandoned, and has expired since, is a new one also where
// a copy of it was: also in a region in which other keys were at home.
func TestMoveForgetsCopiesOfAnAbandonedMove(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=eu *=us", 0)
	own := store.Key{Namespace: movedNamespace, ID: "1", Entity: "a-1"}
	if _, err := w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: own, AttemptID: "a", Epoch: 1, Hold: true}); err != nil {
		t.Fatal(err)
	}
	key := store.Key{Namespace: movedNamespace, ID: "held"}
	if _, err := w.stores["us"].Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a", Epoch: 1, Hold: true}); err != nil {
		t.Fatal(err)
	}
	w.advance(6 * time.Second)
	req := MoveRequest{Namespace: movedNamespace, To: "eu"}
	w.crashAt("copied", req)
	abandoning := req
	abandoning.Abandon = true
	if _, err := w.steps(abandoning, "us"); err != nil {
		t.Fatal(err)
	}
	page, err := w.stores["eu"].ListRecords(t.Context(), store.ListRequest{Namespace: movedNamespace})
	if err != nil || len(page.Records) != 1 || page.Records[0].Key != own {
		t.Errorf("the region has %+v, %v; want what lives there", page.Records, err)
	}
	if _, err := w.stores["us"].Resolve(t.Context(), store.ResolveRequest{Key: key, AnyFence: true, Reason: "it was done", Outcome: &store.Outcome{}, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	w.advance(worldRetention)
	w.finishMove(req)
	if got := w.claim("eu", "held", "b", 2); got.Granted == nil || got.Granted.AttemptNumber != 1 {
		t.Errorf("the key is answered %+v, want granted as a new one", got)
	}
	if got, err := w.stores["eu"].Claim(t.Context(), store.ClaimRequest{Key: own, AttemptID: "b", Epoch: 2}); err != nil || got.Unresolved == nil {
		t.Errorf("what lived there before: %+v, %v; want unresolved", got, err)
	}
}

// What the new home has of an earlier stay, out of a backup for example, says nothing any more.
func TestMoveForgetsAnEarlierStay(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	old := &store.Record{
		Key: store.Key{Namespace: movedNamespace, ID: "1"}, State: store.StateInProgress, Fence: 1, AttemptID: "a", AttemptNumber: 1,
		GrantedAt: storetest.Start, LeaseEnd: storetest.Start, AttemptLimit: storetest.Start, LapsePolicy: store.Hold, Retention: worldRetention,
	}
	sealed := store.Placement{Epoch: 1, Revision: 3, Rule: "fixed us", Move: store.Move{To: "eu", Phase: store.MoveSealed}}
	rest := store.Placement{Epoch: 1, Revision: 4, Rule: "fixed us"}
	for _, p := range []store.Placement{sealed, rest} {
		if _, err := w.stores["eu"].PlaceNamespace(t.Context(), movedNamespace, p); err != nil {
			t.Fatal(err)
		}
		if p == sealed {
			if err := w.stores["eu"].ImportRecords(t.Context(), movedNamespace, 3, []store.Inspection{{Record: old}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.stores["us"].PlaceNamespace(t.Context(), movedNamespace, rest); err != nil {
		t.Fatal(err)
	}
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
	if g := w.claim("eu", "1", "b", 2); g.Granted == nil || g.Granted.AttemptNumber != 1 {
		t.Fatalf("the key is answered %+v, and no live record of it was moved", g)
	}
}

// abandonWithout gives up a move in a region that does not reach others.
func (w *moveWorld) abandonWithout(here, to string, away ...string) (said Step, err error) {
	m := w.mover(here, func() error { return nil })
	for _, region := range away {
		m.Peers[region] = awayParty{}
	}
	err = m.Move(w.t.Context(), MoveRequest{Namespace: movedNamespace, To: to, Abandon: true}, func(s Step) error {
		said = s
		return nil
	})
	return said, err
}

// The region that a move was given up for may be lost for long: the keys are used as before, and
// moved elsewhere. What it had copied it forgets before anything is moved there again.
func TestMoveIsAbandonedWithoutItsTarget(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	if _, err := w.stores["us"].Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: movedNamespace, ID: "held"}, AttemptID: "a", Epoch: 1, Hold: true}); err != nil {
		t.Fatal(err)
	}
	w.advance(6 * time.Second)
	req := MoveRequest{Namespace: movedNamespace, To: "eu"}
	w.crashAt("copied", req)
	said, err := w.abandonWithout("us", "eu", "eu")
	if err != nil || said.Name != "abandoned" || !strings.Contains(said.Detail, `["eu"] could not be reached`) {
		t.Fatalf("%+v, %v", said, err)
	}
	if w.claim("us", "1", "a", 1).Granted == nil {
		t.Error("the old home does not serve again")
	}
	w.advance(6 * time.Second)
	away := w.mover("ap", func() error { return nil })
	away.Peers["eu"] = awayParty{}
	if err := away.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "ap"}, quiet); err != nil {
		t.Fatalf("moved elsewhere meanwhile: %v", err)
	}
	if _, err := w.stores["ap"].Resolve(t.Context(), store.ResolveRequest{Key: store.Key{Namespace: movedNamespace, ID: "held"}, AnyFence: true, Reason: "done", Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	w.advance(worldRetention)
	w.finishMove(req)
	w.checkArrived("eu")
	if got := w.claim("eu", "held", "b", 3); got.Granted == nil {
		t.Errorf("a key that was settled meanwhile: %+v", got)
	}
}

// No move begins while a home cannot be reached.
func TestMoveDoesNotBeginWithoutAHome(t *testing.T) {
	for _, lost := range []string{"ap", "us"} {
		w := newMoveWorld(t, 1, "prefix a-=ap *=us", 0)
		m := w.mover("eu", func() error { return nil })
		m.Peers[lost] = awayParty{}
		if err := m.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "eu"}, quiet); !errors.Is(err, store.ErrHomeUnreachable) {
			t.Errorf("without %s: %v", lost, err)
		}
		for _, region := range worldRegions {
			if p := w.placementIn(region); p.Revision != 1 {
				t.Errorf("without %s: region %s has %+v", lost, region, p)
			}
		}
	}
}

// Settings that came to differ between the comparison at the beginning and the freeze, from where
// on no store changes them, stop the move; they can be set right once it is abandoned.
func TestMoveComparesSettingsWhenTheyCannotChangeAnyMore(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=ap *=us", 0)
	changed := false
	m := w.mover("eu", func() error {
		if p := w.placementIn("eu"); p.Move.Phase == store.MoveFlipped && !changed { // us has not heard of the move yet
			changed = true
			ns, err := w.stores["us"].GetNamespace(t.Context(), movedNamespace)
			if err != nil {
				t.Fatal(err)
			}
			ns.LapsePolicy = store.Hold
			if _, err := w.stores["us"].UpdateNamespace(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	})
	err := m.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "eu"}, quiet)
	if !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), "lapse policy is takeover in eu and hold in us; abandon the move") {
		t.Fatalf("got %v", err)
	}
	if said, err := w.abandonWithout("us", "eu"); err != nil || said.Name != "abandoned" {
		t.Fatalf("%+v, %v", said, err)
	}
}

// A listing may leave out what moves in the store meanwhile: it is listed until nothing is new.
func TestMoveListsUntilNothingIsNew(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	for _, id := range []string{"1", "2"} {
		w.complete("us", id, "a", w.claim("us", id, "a", 1).Granted.Fence, 1)
	}
	m := w.mover("eu", func() error { return nil })
	m.Peers["us"] = &forgetful{Party: m.Peers["us"]}
	if err := m.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "eu"}, quiet); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2"} {
		if w.claim("eu", id, "b", 2).Completed == nil {
			t.Errorf("record %s was not moved", id)
		}
	}
}

// forgetful leaves the last record out the first time it is asked.
type forgetful struct {
	Party
	asked bool
}

func (f *forgetful) Export(ctx context.Context, namespace string, revision int64, token string) (Exported, error) {
	page, err := f.Party.Export(ctx, namespace, revision, token)
	if !f.asked && err == nil {
		f.asked, page.Records = true, page.Records[:len(page.Records)-1]
	}
	return page, err
}

// Some processes on an old home's store act by an older placement for a while. Nothing is copied
// before they are sealed too, and nothing forgotten before they know where the keys are.
func TestMoveWaitsUntilPlacementsAreInForce(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	w.claim("us", "1", "a", 1)
	w.advance(6 * time.Second)
	m := w.mover("eu", func() error { return nil })
	late := &slow{Party: m.Peers["us"], w: w, inForce: map[store.MovePhase]time.Time{}}
	m.Peers["us"] = late
	if err := m.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "eu"}, quiet); err != nil {
		t.Fatal(err)
	}
	if late.exported == 0 || late.forgot == 0 {
		t.Errorf("%d exports, %d removals", late.exported, late.forgot)
	}
}

// slow is a region some of whose processes follow 20 s later.
type slow struct {
	Party
	w                *moveWorld
	inForce          map[store.MovePhase]time.Time
	exported, forgot int
}

func (s *slow) Place(ctx context.Context, namespace string, p store.Placement) (store.Placed, error) {
	placed, err := s.Party.Place(ctx, namespace, p)
	if s.inForce[p.Move.Phase].IsZero() {
		s.inForce[p.Move.Phase] = placed.Now.Add(20 * time.Second)
	}
	placed.InForce = placed.Now.Add(20 * time.Second)
	return placed, err
}

func (s *slow) check(phase store.MovePhase, what string) {
	if now := s.w.clocks["us"].Wall(); now.Before(s.inForce[phase]) {
		s.w.t.Errorf("%s at %v, and the placement is in force at %v", what, now, s.inForce[phase])
	}
}

func (s *slow) Export(ctx context.Context, namespace string, revision int64, token string) (Exported, error) {
	s.check(store.MoveSealed, "exported")
	s.exported++
	return s.Party.Export(ctx, namespace, revision, token)
}

func (s *slow) Forget(ctx context.Context, namespace string, revision int64) (bool, error) {
	s.forgot++
	now := s.w.clocks["us"].Wall()
	if flipped := s.inForce[store.MoveFlipped]; s.exported > 0 && now.Sub(s.inForce[store.MoveSealed]) < 20*time.Second {
		s.w.t.Errorf("forgotten at %v, flipped after %v", now, flipped)
	}
	return s.Party.Forget(ctx, namespace, revision)
}

func TestMoveRefusals(t *testing.T) {
	w := newMoveWorld(t, 1, "fixed us", 0)
	w.crashAt("frozen", MoveRequest{Namespace: movedNamespace, To: "eu"})
	for _, c := range []struct {
		name, here string
		req        MoveRequest
		want       error
		says       string
	}{
		{"asked elsewhere", "us", MoveRequest{Namespace: movedNamespace, To: "eu"}, store.ErrWrongRegion, `ask a server of region "eu"`},
		{"no such region", "us", MoveRequest{Namespace: movedNamespace, To: "mars"}, store.ErrInvalidArgument, `"ap" "eu" "us"`},
		{"no such namespace", "eu", MoveRequest{Namespace: "none", To: "eu"}, store.ErrNamespaceUnknown, ""},
		{"not placed", "eu", MoveRequest{Namespace: store.DefaultNamespace, To: "eu"}, store.ErrInvalidArgument, "no placement"},
		{"on its way elsewhere", "ap", MoveRequest{Namespace: movedNamespace, To: "ap"}, store.ErrInvalidArgument, `on its way to region "eu"`},
		{"another is abandoned", "us", MoveRequest{Namespace: movedNamespace, To: "ap", Abandon: true}, store.ErrInvalidArgument, `on its way to region "eu"`},
		{"negative patience", "eu", MoveRequest{Namespace: movedNamespace, To: "eu", Patience: -1}, store.ErrInvalidArgument, "patience"},
	} {
		if _, err := w.steps(c.req, c.here); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.says)
		}
	}
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
	steps, err := w.steps(MoveRequest{Namespace: movedNamespace, To: "eu", Abandon: true}, "us")
	if !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), "no move") || len(steps) > 0 {
		t.Errorf("abandoned though it has arrived: %q, %v", steps, err)
	}
}

// Of a namespace that has two placements, of which neither can follow the other, nothing is moved, and
// no move is given up.
func TestMoveRefusesADispute(t *testing.T) {
	sealed := store.Move{To: "eu", Phase: store.MoveSealed}
	for name, placements := range map[string]map[string]store.Placement{
		"of one revision": {"us": {Epoch: 2, Revision: 3, Rule: "fixed us", Move: sealed}, "eu": {Epoch: 2, Revision: 3, Rule: "spread ap us", Move: sealed}},
		"that cross":      {"us": {Epoch: 1, Revision: 9, Rule: "fixed us", Move: sealed}, "eu": {Epoch: 2, Revision: 6, Rule: "fixed us", Move: sealed}},
		"that cross back": {"us": {Epoch: 2, Revision: 6, Rule: "fixed us", Move: sealed}, "eu": {Epoch: 1, Revision: 9, Rule: "fixed us", Move: sealed}},
	} {
		for _, abandon := range []bool{false, true} {
			w := newMoveWorld(t, 1, "fixed us", 0)
			for region, p := range placements {
				if _, err := w.stores[region].PlaceNamespace(t.Context(), movedNamespace, p); err != nil {
					t.Fatal(err)
				}
			}
			_, err := w.steps(MoveRequest{Namespace: movedNamespace, To: "eu", Abandon: abandon}, "eu")
			if !errors.Is(err, store.ErrWrongRegion) || !strings.Contains(err.Error(), "another placement") {
				t.Errorf("two placements %s, abandon %v: %v", name, abandon, err)
			}
			for region, p := range placements {
				if now := w.placementIn(region); now != p {
					t.Errorf("two placements %s: that of %s was changed to %+v", name, region, now)
				}
			}
		}
	}
}
