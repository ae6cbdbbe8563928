package region

import (
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

var payKey = store.Key{Namespace: "pay", ID: "order-1"}

func (s *site) createPay(retention time.Duration) {
	s.world.Helper()
	ns := store.Namespace{Name: "pay", Tier: store.TierHour, Retention: retention, MaxAttempt: time.Minute}
	if _, err := s.router.CreateNamespace(s.world.Context(), ns); err != nil {
		s.world.Fatal(err)
	}
}

func (s *site) pay() store.Namespace {
	s.world.Helper()
	ns, err := s.store.GetNamespace(s.world.Context(), "pay")
	if err != nil {
		s.world.Fatal(err)
	}
	return ns
}

func (s *site) movePayHere() {
	s.world.Helper()
	err := s.region.MoveNamespace(s.world.Context(), &pb.MoveNamespaceRequest{Namespace: "pay", ToRegion: s.name}, func(*pb.MoveNamespaceResponse) error {
		s.world.clock.Advance(time.Millisecond)
		return nil
	})
	if err != nil {
		s.world.Fatal(err)
	}
}

// What has expired by a shorter retention of earlier is no new key for a region that was added later,
// whether it was told of it when the namespace was created there, or by the move alone.
func TestPastRetentionsGoWhereTheNamespaceGoes(t *testing.T) {
	for name, told := range map[string]bool{"created by the regions": true, "created in the store": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testPastRetentions(t, told) })
		})
	}
}

func testPastRetentions(t *testing.T, told bool) {
	w := build(t, `"*": fixed us`, "eu", "us", "ap")
	old := []*site{w.eu(), w.us()}
	for _, s := range old {
		s.regions = []string{"eu", "us"}
		s.start()
	}
	for _, s := range old {
		s.events.until(t, "it has joined", func() bool { return s.events.joined })
	}
	w.us().createPay(time.Minute)
	w.us().done(payKey)
	repeat := store.ClaimRequest{Key: payKey, AttemptID: "b", IntentTime: w.clock.Wall()}
	ns := w.us().pay()
	ns.Retention = time.Hour
	if _, err := w.us().router.UpdateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(2 * time.Minute)
	_, err := w.us().router.Claim(t.Context(), repeat)
	refuses(t, err, store.ErrKeyExpired)

	for _, s := range old {
		s.stop()
		s.regions = []string{"eu", "us", "ap"}
		s.start()
	}
	if !told {
		if _, err := w.ap().store.CreateNamespace(t.Context(), store.Namespace{Name: "pay", Tier: store.TierHour, Retention: time.Hour, MaxAttempt: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	w.ap().start()
	w.join()
	w.eventually("all serve", func() bool {
		return w.eu().region.atHome() == nil && w.us().region.atHome() == nil && w.ap().region.atHome() == nil
	})
	w.ap().createPay(time.Hour)
	if got, want := w.ap().pay().PastRetentions, w.us().pay().PastRetentions; told && (len(got) != 1 || got[0] != want[0]) {
		t.Errorf("created with the past retentions %v, the others have %v", got, want)
	}
	w.ap().movePayHere()
	answer, err := w.ap().router.Claim(t.Context(), repeat)
	if err == nil {
		t.Fatalf("what has expired is new after the move: %+v", answer)
	}
	refuses(t, err, store.ErrKeyExpired)
	w.stop()
}

// movedUnseen has pay live at eu, as eu's store does not know: it has the records and the placements
// of a backup from before the move. The old home has forgotten the keys.
func (w *world) movedUnseen() {
	w.Helper()
	ctx := w.Context()
	for i, p := range []store.Placement{
		{Epoch: 2, Revision: 9, Rule: "fixed eu", Move: store.Move{To: "eu", Phase: store.MoveFlipped}},
		{Epoch: 2, Revision: 10, Rule: "fixed eu"},
	} {
		if _, err := w.us().store.PlaceNamespace(ctx, "pay", p); err != nil {
			w.Fatal(err)
		}
		if i == 0 {
			if _, err := w.us().store.ForgetRecords(ctx, "pay", p.Revision, nil); err != nil {
				w.Fatal(err)
			}
		}
	}
}

// knowsNothing fails the test unless a floor stands for pay at eu, of which it is said, once, that
// nothing is known from before it.
func (w *world) knowsNothing() {
	w.Helper()
	ns, steps := w.eu().pay(), 0
	for _, step := range ns.Recovery {
		if step.Kind == store.RecoveryBegun && step.CompleteUntil.Equal(store.KnowsNothing) {
			steps++
		}
	}
	if ns.RecoveryFloor.IsZero() || steps != 1 {
		w.Errorf("%d steps of %+v say that nothing is known; the floor is %v", steps, ns.Recovery, ns.RecoveryFloor)
	}
}

// A store that was restored knows nothing of the keys that a move has brought since its backup,
// whatever it is complete for, and says so.
func TestARestoredStoreKnowsNothingOfWhatWasMovedThere(t *testing.T) {
	for name, begin := range map[string]func(w *world){
		"recovery begun before it hears": func(w *world) { w.eu().beginRecovery() },
		"and lifted too early": func(w *world) {
			w.eu().beginRecovery()
			if _, err := w.eu().store.LiftRecovery(w.Context(), store.LiftRecoveryRequest{Namespace: "pay", LeasesEnded: true, Reason: "r"}); err != nil {
				w.Fatal(err)
			}
		},
		"and a start that was interrupted": func(w *world) {
			w.eu().beginRecovery()
			req := store.BeginRecoveryRequest{Namespace: "pay", CompleteUntil: store.KnowsNothing, Reason: "r"}
			if _, err := w.eu().store.BeginRecovery(w.Context(), req); err != nil {
				w.Fatal(err)
			}
		},
		"nobody says that it was restored": func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, `"*": fixed us`, "eu", "us")
				w.us().createPay(time.Minute)
				w.us().done(payKey)
				w.eventually("eu knows where it lives", func() bool { return w.eu().pay().Placement.Epoch == 1 })
				w.stop()
				w.movedUnseen()
				w.clock.Advance(time.Second)
				begin(w)
				for range 2 { // it is not said again at the next start
					w.startAll()
					time.Sleep(startTime)
					w.knowsNothing()
					_, err := w.eu().claim(payKey, "b")
					refuses(t, err, store.ErrUnknownHistory)
					_, err = w.us().claim(payKey, "b")
					refuses(t, err, store.ErrUnknownHistory)
					w.stop()
				}
				w.startAll()
				time.Sleep(startTime)
				if _, err := w.eu().router.LiftRecovery(t.Context(), store.LiftRecoveryRequest{Namespace: "pay", NothingKnown: true, LeasesEnded: true, Reason: "settled"}); err != nil {
					t.Fatal(err)
				}
				w.eu().grants(payKey, "c")
				w.stop()
			})
		})
	}
}

func (s *site) beginRecovery() {
	s.world.Helper()
	req := store.BeginRecoveryRequest{CompleteUntil: storetest.Start, Actor: "idemd", Reason: "restored"}
	if _, err := s.store.BeginRecovery(s.world.Context(), req); err != nil {
		s.world.Fatal(err)
	}
}

// It may be told by a mover of where it lives before it hears that.
func TestARestoredStoreKnowsNothingOfWhatAMoverTellsItOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.us().createPay(time.Minute)
		w.eventually("eu knows where it lives", func() bool { return w.eu().pay().Placement.Epoch == 1 })
		next := store.Placement{Epoch: 2, Revision: 9, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveFrozen}}
		if _, err := (&movedStore{w.eu().store, w.eu().region}).PlaceNamespace(t.Context(), "pay", next); err != nil {
			t.Fatal(err)
		}
		w.knowsNothing()
		w.stop()
	})
}

// A namespace that the backup lacked is created again in the restored store. It was moved there
// since: nothing is known of it either.
func TestARestoredStoreKnowsNothingOfWhatItLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.clock.Advance(time.Second)
		w.stop()
		w.eu().beginRecovery()
		if _, err := w.us().store.CreateNamespace(t.Context(), store.Namespace{Name: "pay", Tier: store.TierHour, Retention: time.Minute, MaxAttempt: time.Minute}); err != nil {
			t.Fatal(err)
		}
		w.movedUnseen()
		w.startAll()
		time.Sleep(startTime)
		w.eu().createPay(time.Minute)
		w.eventually("eu knows where it lives", func() bool { return w.eu().pay().Placement.Epoch == 2 })
		w.knowsNothing()
		_, err := w.eu().claim(payKey, "b")
		refuses(t, err, store.ErrUnknownHistory)
		w.stop()
	})
}

// A move that brings its records to a store whose floor stands brings all that was known.
func TestAMoveToARestoredStoreIsNoneThatItMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.us().createPay(time.Minute)
		w.us().done(payKey)
		w.stop()
		w.clock.Advance(time.Second)
		w.eu().beginRecovery()
		w.startAll()
		time.Sleep(startTime)
		before := len(w.eu().pay().Recovery)
		w.eu().movePayHere()
		if answer, err := w.eu().claim(payKey, "b"); err != nil || answer.Completed == nil {
			t.Errorf("what was moved is answered %+v, %v", answer, err)
		}
		if ns := w.eu().pay(); len(ns.Recovery) != before || ns.RecoveryFloor.IsZero() {
			t.Errorf("after the move: %+v", ns)
		}
		w.us().movePayHere()
		if ns := w.us().pay(); len(ns.Recovery) != 1 || !ns.Recovery[0].CompleteUntil.Equal(storetest.Start) {
			t.Errorf("what the floor is for did not go along: %+v", ns)
		}
		w.stop()
	})
}
