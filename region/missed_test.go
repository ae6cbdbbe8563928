package region

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// liftsAll lifts the floors of eu's store that stand while it lacks pay.
func (w *world) liftsAll() {
	w.Helper()
	for _, req := range []store.LiftRecoveryRequest{{Namespace: store.DefaultNamespace}, {ForNew: true}} {
		req.LeasesEnded, req.Reason = true, "settled"
		if _, err := w.eu().router.LiftRecovery(w.Context(), req); err != nil {
			w.Fatal(err)
		}
	}
}

// A namespace that a restored store lacks, and that lived in its region, is created again after all
// floors were lifted: what was done with its keys is not known any more, whoever creates it.
func TestWhatLivedHereIsCreatedAgainWithAFloor(t *testing.T) {
	for _, creates := range []string{"eu", "us", "us, which sets it"} {
		t.Run(creates, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, `"*": fixed eu`, "eu", "us")
				w.clock.Advance(time.Second)
				w.stop()
				w.eu().beginRecovery()
				pay := store.Namespace{Name: "pay", Tier: store.TierHour, Retention: time.Hour, MaxAttempt: time.Minute}
				if _, err := w.us().store.CreateNamespace(t.Context(), pay); err != nil {
					t.Fatal(err)
				}
				if _, err := w.us().store.PlaceNamespace(t.Context(), "pay", store.Placement{Epoch: 1, Revision: 1, Rule: "fixed eu"}); err != nil {
					t.Fatal(err)
				}
				w.startAll()
				time.Sleep(startTime)
				w.liftsAll()
				switch creates {
				case "eu":
					w.eu().createPay(time.Hour)
				case "us":
					w.us().createPay(time.Hour)
				default:
					if _, err := w.us().router.UpdateNamespace(t.Context(), pay); err != nil {
						t.Fatal(err)
					}
				}
				w.eventually("eu knows where it lives", func() bool { return w.eu().pay().Placement.Epoch == 1 })
				w.knowsNothing()
				if floor := w.us().pay().RecoveryFloor; !floor.IsZero() {
					t.Errorf("us, which has lost nothing, has the floor %v", floor)
				}
				for _, s := range w.sites {
					_, err := s.claim(payKey, "b")
					refuses(t, err, store.ErrUnknownHistory)
				}
				w.stop()
			})
		})
	}
}

// One that is created everywhere, also in several tries, has no floor, and neither has a region that
// is home to none of its keys.
func TestWhatIsNewIsCreatedWithoutAFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		pay := store.Namespace{Name: "pay", Tier: store.TierHour, Retention: time.Hour, MaxAttempt: time.Minute}
		if _, err := w.us().store.CreateNamespace(t.Context(), pay); err != nil {
			t.Fatal(err)
		}
		w.eu().createPay(time.Hour)
		w.ap().createPay(time.Hour)
		for name, s := range w.sites {
			if floor := s.pay().RecoveryFloor; !floor.IsZero() {
				t.Errorf("%s: the floor is %v", name, floor)
			}
			s.grants(store.Key{Namespace: "pay", ID: name}, "a")
		}
		w.stop()
	})
}

// A store that is put back to before two moves, there and back, and does not say so, has the rule that
// is in force, and knows none of the keys that came back.
func TestAStoreFromBeforeTwoMovesKnowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.us().createPay(time.Hour)
		w.eventually("eu knows where it lives", func() bool { return w.eu().pay().Placement.Epoch == 1 })
		w.stop()
		for _, p := range []store.Placement{{Epoch: 2, Revision: 9, Rule: "fixed us"}, {Epoch: 3, Revision: 15, Rule: "fixed eu"}} {
			if _, err := w.us().store.PlaceNamespace(t.Context(), "pay", p); err != nil {
				t.Fatal(err)
			}
		}
		w.startAll()
		time.Sleep(startTime)
		w.knowsNothing()
		_, err := w.eu().claim(payKey, "b")
		refuses(t, err, store.ErrUnknownHistory)
		w.stop()
	})
}

var errMoverDies = errors.New("the mover dies")

// movesPayHereUntil runs a move of pay that dies at the step.
func (s *site) movesPayHereUntil(step string) {
	s.world.Helper()
	err := s.region.MoveNamespace(s.world.Context(), &pb.MoveNamespaceRequest{Namespace: "pay", ToRegion: s.name}, func(m *pb.MoveNamespaceResponse) error {
		s.world.clock.Advance(time.Millisecond)
		if m.GetStep() == step {
			return errMoverDies
		}
		return nil
	})
	if !errors.Is(err, errMoverDies) {
		s.world.Fatalf("the move ended with %v", err)
	}
}

// A floor that came with a move and is lifted at the new home comes back neither when the move goes on,
// nor where it came from when the keys go back there.
func TestAFloorThatIsLiftedAtTheNewHomeStaysLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.us().createPay(time.Hour)
		w.clock.Advance(time.Second)
		if _, err := w.us().router.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: storetest.Start, Reason: "restored"}); err != nil {
			t.Fatal(err)
		}
		w.eventually("us has joined again", func() bool { return w.us().region.member().Joined })
		w.clock.Advance(time.Second)
		w.eu().movesPayHereUntil("flipped")
		_, err := w.eu().claim(payKey, "a")
		refuses(t, err, store.ErrUnknownHistory)
		if _, err := w.eu().router.LiftRecovery(t.Context(), store.LiftRecoveryRequest{Namespace: "pay", LeasesEnded: true, Reason: "settled"}); err != nil {
			t.Fatal(err)
		}
		w.eu().movePayHere()
		w.clock.Advance(time.Second)
		w.eu().done(payKey)
		w.us().movesPayHereUntil("flipped")
		w.us().done(store.Key{Namespace: "pay", ID: "new"})
		w.us().movePayHere()
		if ns := w.us().pay(); !ns.RecoveryFloor.IsZero() {
			t.Errorf("the floor came back: %+v", ns)
		}
		w.stop()
	})
}
