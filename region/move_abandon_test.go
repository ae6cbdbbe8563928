package region

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// gossip has a region hear what another one knows.
func (w *moveWorld) gossip(from, to string) {
	_, err := w.stores[to].PlaceNamespace(w.t.Context(), movedNamespace, w.placementIn(from))
	if err != nil && !errors.Is(err, store.ErrWrongRegion) {
		w.t.Fatal(err)
	}
}

// A home that is lost while a namespace moves from several keeps the others' keys from nobody, once
// the move is given up. When it is back it learns of that, and its keys are used as well.
func TestMoveIsAbandonedWithoutAHome(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=ap *=us", 0)
	w.crashAt("frozen", MoveRequest{Namespace: movedNamespace, To: "eu"})
	if said, err := w.abandonWithout("ap", "eu", "us"); err != nil || said.Name != "abandoned" || !strings.Contains(said.Detail, `["us"] could not be reached`) {
		t.Fatalf("%+v, %v", said, err)
	}
	if p := w.placementIn("us"); p.Move.Phase != store.MoveFrozen {
		t.Fatalf("the lost home has %+v", p)
	}
	w.gossip("eu", "us")
	for _, region := range worldRegions {
		if p := w.placementIn(region); p.Move != (store.Move{}) || p.Rule != "prefix a-=ap *=us" || p.Epoch != 1 {
			t.Errorf("region %s has %+v", region, p)
		}
	}
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
	w.checkArrived("eu")
}

// What the store has decided that is away, nobody knows who was reached: nothing is given up without
// it, whatever else is there, and whatever it has decided. Once it is there the move can be given up,
// or ended if it has flipped.
func TestMoveIsNotAbandonedBlindly(t *testing.T) {
	for _, at := range []string{"frozen", "copied", "flipped"} {
		for _, away := range [][]string{{"ap"}, {"ap", "us"}, {"ap", "eu"}} {
			w := newMoveWorld(t, 1, "prefix a-=ap *=us", 0)
			w.stopAt(at)
			before := w.placements()
			here := "us"
			if slices.Contains(away, "us") {
				here = "eu"
			}
			_, err := w.abandonWithout(here, "eu", away...)
			if !errors.Is(err, store.ErrHomeUnreachable) || !strings.Contains(err.Error(), `the store of region "ap" decides`) || !strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("%s, without %q: %v", at, away, err)
			}
			if now := w.placements(); !maps.Equal(now, before) {
				t.Errorf("%s, without %q: there was %+v, and is %+v", at, away, before, now)
			}
			_, err = w.abandonWithout("us", "eu")
			if at == "flipped" && !errors.Is(err, store.ErrInvalidArgument) || at != "flipped" && err != nil {
				t.Errorf("%s, with all: %v", at, err)
			}
			w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
			w.checkArrived("eu")
		}
	}
}

// stopAt has a mover of keys of ap and us to eu end at the step, or when only ap, which decides
// it, knows that it has flipped.
func (w *moveWorld) stopAt(step string) {
	w.t.Helper()
	if step != "flipped" {
		w.crashAt(step, MoveRequest{Namespace: movedNamespace, To: "eu"})
		return
	}
	w.crashAt("copied", MoveRequest{Namespace: movedNamespace, To: "eu"})
	flip := w.placementIn("ap")
	flip.Epoch, flip.Revision, flip.Rule, flip.Move.Phase = flip.Epoch+1, flip.Revision+1, "fixed eu", store.MoveFlipped
	if _, err := w.stores["ap"].PlaceNamespace(w.t.Context(), movedNamespace, flip); err != nil {
		w.t.Fatal(err)
	}
}

func (w *moveWorld) placements() map[string]store.Placement {
	all := map[string]store.Placement{}
	for _, region := range worldRegions {
		all[region] = w.placementIn(region)
	}
	return all
}

func TestMoveThatHasEndedIsNotAbandoned(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=ap *=us", 0)
	w.finishMove(MoveRequest{Namespace: movedNamespace, To: "eu"})
	if _, err := w.abandonWithout("us", "eu", "ap"); !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), "no move") {
		t.Errorf("after it has ended: %v", err)
	}
}

// A move is given up on one side of a partition, and the keys go elsewhere on the other. Whoever is
// sealed for that, and hears then from the first side, is no home again.
func TestMoveIsAbandonedByTheWordOfOneStore(t *testing.T) {
	w := newMoveWorld(t, 1, "prefix a-=ap *=us", 0)
	w.crashAt("sealed", MoveRequest{Namespace: movedNamespace, To: "eu"})
	if said, err := w.abandonWithout("eu", "eu", "ap", "us"); !errors.Is(err, store.ErrHomeUnreachable) {
		t.Errorf("without the region that decides: %+v, %v", said, err)
	}
	if said, err := w.abandonWithout("ap", "eu", "eu"); err != nil || said.Name != "abandoned" {
		t.Fatalf("%+v, %v", said, err)
	}
	m := w.mover("ap", func() error { return nil })
	m.Peers["eu"] = awayParty{}
	err := m.Move(t.Context(), MoveRequest{Namespace: movedNamespace, To: "ap"}, func(s Step) error {
		if s.Name == "flipped" { // us has not heard of it
			w.gossip("eu", "us")
		}
		w.checkGrants()
		return nil
	})
	if err != nil {
		t.Errorf("moved elsewhere meanwhile: %v", err)
	}
}

// movePay moves pay, or gives that up, at a server of the region. The mover dies at the step.
func (s *site) movePay(to, dies string, abandon bool) error {
	died := errors.New("the mover died")
	err := s.region.MoveNamespace(s.world.Context(), &pb.MoveNamespaceRequest{Namespace: "pay", ToRegion: to, Abandon: abandon}, func(m *pb.MoveNamespaceResponse) error {
		s.world.clock.Advance(time.Millisecond)
		if m.GetStep() == dies {
			return died
		}
		return nil
	})
	if dies != "" && !errors.Is(err, died) {
		s.world.Fatalf("the move to %s did not come to %s: %v", to, dies, err)
	}
	if dies == "" {
		return err
	}
	return nil
}

// cutOff cuts the region off from all others, until heal ends it.
func (s *site) cutOff() (heal func()) {
	w := s.world
	each := func(f func(from, to string)) {
		for name := range w.sites {
			if name != s.name {
				f(s.name, name)
				f(name, s.name)
			}
		}
	}
	aware := func(up bool) {
		for name, other := range w.sites {
			if name != s.name {
				s.events.wait(w, name, up)
				other.events.wait(w, s.name, up)
			}
		}
	}
	each(w.silence)
	aware(false)
	return func() {
		each(w.heal)
		each(w.sever)
		aware(true)
	}
}

// A move is given up on both sides of a partition. On the side of the store that decides it is, and
// the keys go elsewhere; on the other nothing is changed. Afterwards all is as the first side has it,
// also if the other repeats its command in the moment in which the partition ends.
func TestAMoveIsAbandonedOnBothSidesOfAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed ap`, "ap", "eu", "us")
		w.us().createPay(time.Hour)
		before := w.us().done(payKey)
		_ = w.us().movePay("us", "sealed", false)
		heal := w.us().cutOff()
		if err := errors.Join(w.eu().movePay("us", "", true), w.eu().movePay("eu", "", false)); err != nil {
			t.Fatalf("where the store is that decides: %v", err)
		}
		meanwhile := w.eu().done(store.Key{Namespace: "pay", ID: "order-2"})
		was := w.us().pay().Placement
		refuses(t, w.us().movePay("us", "", true), store.ErrHomeUnreachable, `region "ap"`, "nothing was changed", "idemd region accept")
		if now := w.us().pay().Placement; now != was {
			t.Errorf("the placement was %+v, and is %+v", was, now)
		}
		heal()
		_ = w.us().movePay("us", "", true) // if it has not heard yet, it is told now
		for _, s := range w.sites {
			w.eventually(s.name+" knows where it lives", func() bool { return s.pay().Placement == w.eu().pay().Placement })
			for _, key := range []store.Key{before, meanwhile} {
				if answer, err := s.claim(key, "b"); err != nil || answer.Completed == nil || answer.Served.Home != "eu" {
					t.Errorf("a repeat of %s at %s: %+v, %v", key.ID, s.name, answer, err)
				}
			}
			if notice := s.region.Notice(); notice != "" {
				t.Errorf("the notice at %s: %s", s.name, notice)
			}
		}
		if p := w.eu().pay().Placement; p.Rule != "fixed eu" || p.Epoch != 2 {
			t.Errorf("it lives by %+v", p)
		}
		w.stop()
	})
}

// The store that decides is lost for good while a namespace moves. Once another one was accepted in its
// place, the move is given up, and the other home's keys are used again; what the lost one knew is not known.
func TestAMoveIsAbandonedWithTheStoreThatWasAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": prefix a-=ap *=us`, "ap", "eu", "us")
		w.us().createPay(time.Hour)
		lost, known := payKey, w.us().done(store.Key{Namespace: "pay", ID: "order-2"})
		lost.Entity = "a-1"
		w.us().done(lost)
		_ = w.eu().movePay("eu", "copied", false)
		w.ap().loseStore()
		refuses(t, w.us().movePay("eu", "", true), store.ErrHomeUnreachable, `region "ap"`, "nothing was changed", "idemd region accept")
		w.ap().accepts()
		w.us().createPay(time.Hour)
		w.eventually("ap knows of the move", func() bool { return w.ap().pay().Placement == w.us().pay().Placement })
		if err := w.us().movePay("eu", "", true); err != nil {
			t.Fatal(err)
		}
		for _, s := range w.sites {
			w.eventually(s.name+" knows that it was given up", func() bool { return s.pay().Placement == w.us().pay().Placement })
			if answer, err := s.claim(known, "b"); err != nil || answer.Completed == nil || answer.Served.Home != "us" {
				t.Errorf("a repeat at %s: %+v, %v", s.name, answer, err)
			}
			s.grants(store.Key{Namespace: "pay", ID: "new at " + s.name}, "a")
			if answer, err := s.claim(lost, "b"); !errors.Is(err, store.ErrUnknownHistory) {
				t.Errorf("what the lost store knew, at %s: %+v, %v", s.name, answer, err)
			}
		}
		w.stop()
	})
}
