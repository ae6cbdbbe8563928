package region

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
	"github.com/idemd/idemd/store/storetest"
)

// restores stops the region and starts it again as one whose store was restored: it is not joined
// before it has heard all the others.
func (s *site) restores() {
	s.stop()
	for _, other := range s.world.sites {
		if other != s && other.server != nil {
			other.events.wait(s.world, s.name, false)
		}
	}
	s.changeMembership(func(m *store.Membership) { m.Joined = false })
	s.start()
}

// placementOf is what the region's store says of the default namespace.
func (s *site) placementOf() store.Placement {
	s.world.Helper()
	ns, err := s.store.GetNamespace(s.world.Context(), store.DefaultNamespace)
	if err != nil {
		s.world.Fatal(err)
	}
	return ns.Placement
}

// A store that has not joined may know the placements of yesterday: it decides nothing, and takes
// no step of a move, whoever asks.
func TestAStoreThatHasNotJoinedDecidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		w.ap().stop()
		w.eu().restores()
		w.us().events.wait(t, "eu", true)
		before := w.eu().placementOf()
		for _, abandon := range []bool{false, true} {
			_, err := w.us().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "us", Abandon: abandon})
			refused := store.ErrHomeUnreachable
			if abandon {
				refused = store.ErrInvalidArgument // no move is under way
			}
			refuses(t, err, refused, `"eu"`)
		}
		peer, next := w.us().region.peers["eu"].current.Load().client, before
		next.Revision++
		for step, ask := range map[string]func(storeID string) error{
			"place": func(id string) error {
				_, err := peer.PlaceNamespace(t.Context(), &pb.PlaceNamespaceRequest{Region: "eu", FromRegion: "us", FromStoreId: id, Namespace: store.DefaultNamespace, Placement: storepb.PlacementToProto(next)})
				return err
			},
			"export": func(id string) error {
				_, err := peer.ExportRecords(t.Context(), &pb.ExportRecordsRequest{Region: "eu", FromRegion: "us", FromStoreId: id, Namespace: store.DefaultNamespace, Revision: 1})
				return err
			},
			"forget": func(id string) error {
				_, err := peer.ForgetRecords(t.Context(), &pb.ForgetRecordsRequest{Region: "eu", FromRegion: "us", FromStoreId: id, Namespace: store.DefaultNamespace, Revision: 1})
				return err
			},
		} {
			err := storepb.FromStatus(ask(storeID(t, w.us().store)))
			if err == nil || !strings.Contains(err.Error(), "is home to no keys yet") {
				t.Errorf("%s: %v", step, err)
			}
		}
		if now := w.eu().placementOf(); now != before {
			t.Errorf("the placement was %+v, and is %+v", before, now)
		}
		w.ap().start()
		w.join()
		if _, err := w.us().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "us"}); err != nil {
			t.Errorf("once it has joined: %v", err)
		}
		w.stop()
	})
}

// A store that begins a recovery while keys move to it, and has not heard all others since, does not
// go on taking them.
func TestAMoverWhoseStoreIsNoHomeStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		w.ap().stop()
		w.us().events.wait(t, "ap", false)
		err := w.us().move(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "us"}, func(m *pb.MoveNamespaceResponse) error {
			if m.GetStep() != "frozen" {
				return nil
			}
			_, err := w.us().router.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: w.clock.Wall(), Reason: "restored"})
			return err
		})
		refuses(t, err, store.ErrUnavailable, "is home to no keys yet")
		w.stop()
	})
}

// Placements of which one has the higher revision and the other the higher epoch cannot follow
// one another: two stores have decided. Nothing is granted, it is said aloud, and a store that
// has not joined does not join by it.
func TestPlacementsThatDoNotFollowOneAnotherAreDisputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		for _, s := range w.sites {
			s.stop()
		}
		place := func(s *site, p store.Placement) {
			if _, err := s.store.PlaceNamespace(context.Background(), store.DefaultNamespace, p); err != nil {
				t.Fatal(err)
			}
		}
		place(w.ap(), store.Placement{Epoch: 2, Revision: 6, Rule: "fixed ap"})
		for _, s := range []*site{w.eu(), w.us()} {
			place(s, store.Placement{Epoch: 1, Revision: 9, Rule: "fixed eu"})
		}
		w.eu().changeMembership(func(m *store.Membership) { m.Joined = false })
		for _, s := range w.sites {
			s.start()
		}
		for _, s := range w.sites {
			for name := range s.region.peers {
				s.events.wait(t, name, true)
			}
		}
		time.Sleep(10 * time.Second)
		if w.eu().region.member().Joined {
			t.Error("eu has joined")
		}
		if err := w.eu().region.atHome(); err == nil || !strings.Contains(err.Error(), "disputed") {
			t.Errorf("why it has not: %v", err)
		}
		for _, s := range w.sites {
			_, err := s.claim(anyKey, "a")
			refuses(t, err, store.ErrUnavailable, "disputed", "idemd region accept")
			if notice := s.region.Notice(); !strings.Contains(notice, "is disputed") {
				t.Errorf("%s: the notice is %q", s.name, notice)
			}
			if notice := s.region.NoticeForAll(); notice == "" || strings.Contains(notice, `namespace "`) {
				t.Errorf("%s: the notice for all is %q", s.name, notice)
			}
			if log := s.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "is disputed") {
				t.Errorf("%s does not say it aloud: %s", s.name, log)
			}
		}
		w.eu().events.until(t, "it is counted", func() bool { return w.eu().events.disputed == 1 })
		// The way out: the store that decided what it must not is replaced.
		w.ap().loseStore()
		accept := store.AcceptStoreRequest{Region: "ap", StoreID: storeID(t, w.ap().store), Reason: "it was not what it had been"}
		if err := w.us().region.AcceptStore(t.Context(), accept); err != nil {
			t.Fatal(err)
		}
		w.join()
		w.eventually("nothing is disputed", func() bool { return w.eu().region.atlas.Load().byName["default"].dispute == "" })
		w.stop()
	})
}

// A store that was replaced is accepted again while a region cannot be asked that knows of the one in
// between, and the one that is asked does not: it was restored. The store forgets nevertheless.
func TestAStoreIsAcceptedAgainWhereNotAllAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		former, backup := w.eu().store, w.us().region.member().Clone()
		w.eu().loseStore()
		replacement := w.eu().accepts()
		claim := w.newIntent("order-2")
		answer, err := w.eu().router.Claim(t.Context(), claim)
		if err != nil || answer.Granted == nil {
			t.Fatalf("%+v, %v", answer, err)
		}
		if _, err := w.eu().router.Complete(t.Context(), store.CompleteRequest{Key: claim.Key, AttemptID: "a", Fence: answer.Granted.Fence, Outcome: &store.Outcome{}}); err != nil {
			t.Fatal(err)
		}
		for _, s := range w.sites {
			s.stop()
		}
		w.us().changeMembership(func(m *store.Membership) { *m, m.Joined = backup, false })
		w.eu().store = former
		w.us().start()
		w.eu().start()
		w.us().events.wait(t, "eu", true)
		w.eu().events.wait(t, "us", true)
		accept := store.AcceptStoreRequest{Region: "eu", StoreID: storeID(t, former), Reason: "the other disk is gone, this one is back"}
		if err := w.us().region.AcceptStore(t.Context(), accept); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "ap") {
			t.Errorf("accepted, and ap does not know it: %v", err)
		}
		again := func() {
			t.Helper()
			time.Sleep(startTime)
			claim.AttemptID = "b"
			for _, s := range []*site{w.eu(), w.us()} {
				if answer, err := s.router.Claim(t.Context(), claim); err == nil {
					t.Errorf("%s: a key that was completed: %+v", s.name, answer)
				}
			}
		}
		again()
		w.ap().start()
		w.us().events.wait(t, "ap", true)
		if err := w.us().region.AcceptStore(t.Context(), accept); err != nil {
			t.Errorf("once more, with ap: %v", err)
		}
		w.join()
		again()
		ns, err := former.GetNamespace(t.Context(), store.DefaultNamespace)
		if err != nil || ns.RecoveryFloor.IsZero() || former == replacement {
			t.Errorf("it has not forgotten: %+v, %v", ns, err)
		}
		w.stop()
	})
}

// Two stores were restored, of which one knows nothing of a move to the other: what was done there
// while the first had not joined is forgotten by both. So what a store may have forgotten goes up to
// when it has joined.
func TestAStoreMayHaveForgottenWhatWasDoneUntilItJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		began := w.clock.Wall().Add(-time.Second)
		if _, err := w.eu().router.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: began, Actor: "omar", Reason: "restored"}); err != nil {
			t.Fatal(err)
		}
		meanwhile := w.newIntent("order-1") // completed at us, which forgets it
		w.clock.Advance(time.Hour)
		w.us().start()
		w.join()
		for _, s := range w.sites {
			if answer, err := s.router.Claim(t.Context(), meanwhile); !errors.Is(err, store.ErrUnknownHistory) {
				t.Errorf("%s: %+v, %v; want UNKNOWN_HISTORY", s.name, answer, err)
			}
		}
		ns, err := w.eu().store.GetNamespace(t.Context(), store.DefaultNamespace)
		if err != nil || len(ns.Recovery) != 1 || !ns.Recovery[0].CompleteUntil.Equal(began) || ns.Recovery[0].Reason != "restored" || !ns.RecoveryFloor.Equal(ns.Recovery[0].Floor) {
			t.Errorf("what is said of it: %+v, %v", ns, err)
		}
		if !ns.FloorForNew.Equal(ns.RecoveryFloor) || !ns.Recovery[0].ForNew {
			t.Errorf("namespaces to come begin with %v: %+v", ns.FloorForNew, ns)
		}
		floor := ns.RecoveryFloor
		w.eu().stop()
		w.clock.Advance(time.Hour)
		w.eu().start()
		w.join()
		if ns, err = w.eu().store.GetNamespace(t.Context(), store.DefaultNamespace); err != nil || !ns.RecoveryFloor.Equal(floor) {
			t.Errorf("after a restart the floor is %v, and was %v; %v", ns.RecoveryFloor, floor, err)
		}
		w.stop()
	})
}

// That goes for the floor of namespaces to come too, also if the default one has forgotten more than
// they have.
func TestTheFloorOfNamespacesToComeRisesUntilTheStoreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		for _, req := range []store.BeginRecoveryRequest{
			{CompleteUntil: w.clock.Wall().Add(-time.Second), Reason: "restored"},
			{CompleteUntil: store.KnowsNothing, Namespace: store.DefaultNamespace, Reason: "moved here"},
		} {
			if _, err := w.eu().router.BeginRecovery(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		w.clock.Advance(time.Hour)
		joined := w.clock.Wall()
		w.us().start()
		w.join()
		ns, err := w.eu().store.GetNamespace(t.Context(), store.DefaultNamespace)
		if err != nil || ns.FloorForNew.Before(joined) || ns.RecoveryFloor.Before(joined) || len(ns.Recovery) != 2 || !ns.ForgotAll() {
			t.Errorf("joined at %v: %+v, %v", joined, ns, err)
		}
		created := store.Namespace{Name: "pay"}.Create(&ns, w.clock.Wall())
		if created.ForgotAll() || created.RecoveryFloor.Before(joined) {
			t.Errorf("one that is created then: %+v", created)
		}
		w.stop()
	})
}

// As long as a store has not joined, what it may have forgotten is still growing, and no floor is
// lifted.
func TestNoFloorIsLiftedBeforeTheStoreHasJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		if _, err := w.eu().router.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: storetest.Start, Reason: "restored"}); err != nil {
			t.Fatal(err)
		}
		lift := store.LiftRecoveryRequest{Namespace: store.DefaultNamespace, LeasesEnded: true, Reason: "settled"}
		_, err := w.eu().router.LiftRecovery(t.Context(), lift)
		refuses(t, err, store.ErrUnavailable, "is home to no keys yet")
		w.us().start()
		w.join()
		if _, err := w.eu().router.LiftRecovery(t.Context(), lift); err != nil {
			t.Error(err)
		}
		w.stop()
	})
}
