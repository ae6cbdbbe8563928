package region

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// loseStore starts the region again with an empty store, and waits until the others have seen it.
func (s *site) loseStore() *storetest.Memory {
	s.world.Helper()
	s.stop()
	lost := storetest.NewMemory(s.world.clock)
	s.store = lost
	s.start()
	for _, other := range s.world.sites {
		if other != s {
			other.events.until(s.world, other.name+" sees another store", func() bool { return other.events.strangers[s.name] })
			s.events.wait(s.world, other.name, true)
		}
	}
	return lost
}

func storeID(t testing.TB, s store.Members) string {
	t.Helper()
	m, err := s.Membership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m.StoreID
}

// done is a key that was completed.
func (s *site) done(key store.Key) store.Key {
	s.world.Helper()
	fence := s.grants(key, "a").Granted.Fence
	_, err := s.router.Complete(s.world.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{}})
	if err != nil {
		s.world.Fatal(err)
	}
	return key
}

// A region that has lost its store must not take completed keys for new ones; neither before an
// operator accepts the new one, nor after.
func TestARegionThatLostItsStoreGrantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		if _, err := w.us().router.CreateNamespace(t.Context(), store.Namespace{Name: "orders"}); err != nil {
			t.Fatal(err)
		}
		w.us().done(anyKey)
		order := w.us().done(store.Key{Namespace: "orders", ID: "order-1"})
		lost := w.eu().loseStore()
		time.Sleep(time.Minute)
		id := storeID(t, lost)
		for _, s := range w.sites {
			_, err := s.claim(anyKey, "b")
			sentinel := store.ErrHomeUnreachable
			if s.name == "eu" {
				sentinel = store.ErrUnavailable
			}
			refuses(t, err, sentinel, "idemd region accept eu --store-id "+id, "UNKNOWN_HISTORY")
			if notice := s.region.Notice(); !strings.Contains(notice, id) {
				t.Errorf("%s: the notice is %q", s.name, notice)
			}
		}
		_, err := w.eu().claim(order, "b")
		refuses(t, err, store.ErrUnavailable, "is home to no keys yet")
		_, err = w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "orders"})
		refuses(t, err, store.ErrUnavailable, `does not believe who asks as region "eu"`)
		if log := w.us().log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "another store than the one that is known") {
			t.Errorf("us does not say it aloud: %s", log)
		}

		accept := store.AcceptStoreRequest{Region: "eu", StoreID: id, Actor: "omar", Reason: "the disk is gone"}
		if err := w.us().region.AcceptStore(t.Context(), accept); err != nil {
			t.Fatal(err)
		}
		if err := w.us().region.AcceptStore(t.Context(), accept); err != nil {
			t.Errorf("once more: %v", err)
		}
		w.eu().events.until(t, "eu has joined", func() bool { return w.eu().events.joined })
		w.join()
		ns, err := lost.GetNamespace(t.Context(), "default")
		if err != nil || len(ns.Recovery) != 1 || ns.Recovery[0].Actor != "omar" || ns.Recovery[0].Reason != "the disk is gone" {
			t.Errorf("steps of the recovery: %+v, %v", ns.Recovery, err)
		}
		if _, err := w.us().router.CreateNamespace(t.Context(), store.Namespace{Name: "orders"}); err != nil {
			t.Fatal(err)
		}
		w.eventually("eu has learned where orders live", func() bool { return w.eu().region.atlas.Load().byName["orders"].placed() })
		for _, s := range w.sites {
			for _, key := range []store.Key{anyKey, order} {
				_, err := s.claim(key, "b")
				refuses(t, err, store.ErrUnknownHistory)
			}
		}
		w.clock.Advance(time.Hour)
		newer := store.ClaimRequest{Key: store.Key{Namespace: "orders", ID: "newer"}, AttemptID: "a", IntentTime: w.clock.Wall()}
		if answer, err := w.ap().router.Claim(t.Context(), newer); err != nil || answer.Granted == nil {
			t.Errorf("a newer intent: %+v, %v", answer, err)
		}
		w.stop()
	})
}

// A new store is no home as long as one region does not know it: the old one may still serve there.
func TestAStoreJoinsOnceAllHaveAcceptedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		w.us().done(anyKey)
		id := storeID(t, w.eu().loseStore())
		w.ap().stop()
		w.us().events.wait(t, "ap", false)
		accept := store.AcceptStoreRequest{Region: "eu", StoreID: id, Reason: "the disk is gone"}
		refuses(t, w.us().region.AcceptStore(t.Context(), accept), store.ErrUnavailable, `region "ap": `, "do it again")
		time.Sleep(time.Minute)
		_, err := w.us().claim(anyKey, "b")
		refuses(t, err, store.ErrUnavailable, `the store of region "eu"`, "is home to no keys yet", `region "ap", which must know it, cannot be reached`)
		w.ap().start()
		w.join() // ap has heard of it from us
		if err := w.us().region.AcceptStore(t.Context(), accept); err != nil {
			t.Fatal(err)
		}
		want := store.PeerStore{StoreID: id, Acceptance: store.Acceptance{Number: 1, Reason: "the disk is gone"}}
		for _, s := range []*site{w.us(), w.ap()} {
			if got := s.region.member().Peers["eu"]; got != want {
				t.Errorf("%s knows %+v, want %+v", s.name, got, want)
			}
		}
		_, err = w.us().claim(anyKey, "b")
		refuses(t, err, store.ErrUnknownHistory)
		w.stop()
	})
}

func TestWhatCannotBeAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		id := storeID(t, w.eu().loseStore())
		for what, req := range map[string]store.AcceptStoreRequest{
			"a reason is required":       {Region: "eu", StoreID: id},
			"32 hexadecimal digits":      {Region: "eu", StoreID: "abc", Reason: "r"},
			"names no region":            {Region: "ap", StoreID: id, Reason: "r"},
			"a server of another region": {Region: "us", StoreID: id, Reason: "r"},
			"has the id " + id:           {Region: "eu", StoreID: store.NewStoreID(), Reason: "r"},
		} {
			refuses(t, w.us().region.AcceptStore(t.Context(), req), store.ErrInvalidArgument, what)
		}
		mistyped := store.AcceptStoreRequest{Region: "us", StoreID: store.NewStoreID(), Reason: "r"}
		refuses(t, w.eu().region.AcceptStore(t.Context(), mistyped), store.ErrInvalidArgument, "has the id "+storeID(t, w.us().store))
		w.us().stop()
		for range 2 { // before it is found out, and after
			refuses(t, w.eu().region.AcceptStore(t.Context(), mistyped), store.ErrUnavailable, `none answers as region "us"`)
			w.eu().events.wait(t, "us", false)
		}
		w.us().start()
		w.eu().events.wait(t, "us", true)
		if log := w.us().log.String(); strings.Contains(log, "home to no keys") {
			t.Errorf("us lost its standing: %s", log)
		}
		w.stop()
	})
}

// The store that was lost turns up again after another was accepted in its place: it serves
// nothing, as it hears of that first.
func TestAStoreThatWasReplacedServesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		old := w.eu().store
		id := storeID(t, w.eu().loseStore())
		if err := w.us().region.AcceptStore(t.Context(), store.AcceptStoreRequest{Region: "eu", StoreID: id, Reason: "the disk is gone"}); err != nil {
			t.Fatal(err)
		}
		w.join()
		w.eu().stop()
		w.eu().store = old
		w.eu().start()
		_, err := w.eu().claim(anyKey, "a") // it was joined when it was stopped, and may have heard in this moment that it is no home
		refuses(t, err, store.ErrUnavailable)
		if text := err.Error(); !strings.Contains(text, "was just started") && !strings.Contains(text, "it was replaced by "+id) {
			t.Errorf("it is refused because of %q", text)
		}
		w.eu().events.until(t, "eu is no home", func() bool { return !w.eu().events.joined })
		w.eu().events.wait(t, "us", true)
		_, err = w.eu().claim(anyKey, "a")
		refuses(t, err, store.ErrUnavailable, "it was replaced by "+id, "(the disk is gone)", "switch "+storeID(t, old)+" off")
		if m, err := old.Membership(t.Context()); err != nil || m.Joined {
			t.Errorf("the old store is still joined: %+v, %v", m, err)
		}
		w.stop()
	})
}

// What an operator is told of a store that was replaced and is started again: to go back, and no
// command that would throw the other one away. After a restart of who tells it, too.
func TestAStoreThatWasReplacedIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		former := w.eu().store
		w.eu().loseStore()
		replacement := w.eu().accepts()
		w.eu().stop()
		w.us().stop()
		w.eu().store = former
		w.us().start()
		w.eu().start()
		time.Sleep(time.Minute)
		for _, s := range w.sites {
			notice := s.region.Notice()
			if strings.Contains(notice, "region accept") {
				t.Errorf("%s offers the store that was replaced: %s", s.name, notice)
			}
			for _, want := range []string{"replaced by " + storeID(t, replacement), "omar decided (it is the one we have)", "switch " + storeID(t, former) + " off", "on " + storeID(t, replacement) + " again"} {
				if strings.Count(notice, want) != 1 {
					t.Errorf("%s does not say once %q: %s", s.name, want, notice)
				}
			}
		}
		if shown := w.us().region.Topology().GetRegions()[0].GetOtherStoreTrouble(); !strings.Contains(shown, "was replaced by") {
			t.Errorf("us shows %q", shown)
		}
		accept := store.AcceptStoreRequest{Region: "eu", StoreID: storeID(t, former), Reason: "r"}
		refuses(t, w.us().region.AcceptStore(t.Context(), accept), store.ErrInvalidArgument, "was replaced by", "--again")
		w.eu().stop()
		w.eu().store = replacement
		w.eu().start()
		w.join()
		w.stop()
	})
}

// accepts accepts the store that the region has, at us, and waits until all have joined.
func (s *site) accepts() store.Backend {
	w := s.world
	w.Helper()
	accept := store.AcceptStoreRequest{Region: s.name, StoreID: storeID(w, s.store), Actor: "omar", Reason: "it is the one we have", Again: true}
	if err := w.us().region.AcceptStore(w.Context(), accept); err != nil {
		w.Fatal(err)
	}
	s.events.until(w, s.name+" has joined", func() bool { return s.events.joined })
	w.join()
	return s.store
}

// newIntent is a claim of a key that no recovery floor is about.
func (w *world) newIntent(id string) store.ClaimRequest {
	w.clock.Advance(time.Hour)
	return store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: id}, AttemptID: "a", IntentTime: w.clock.Wall()}
}

// A store that was replaced, and is accepted again when the other is lost too, does not know what
// that one did.
func TestAStoreThatIsAcceptedAgainForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		former := w.eu().store
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
		w.eu().stop()
		w.us().events.wait(t, "eu", false)
		err = w.us().region.AcceptStore(t.Context(), store.AcceptStoreRequest{Region: "eu", StoreID: storeID(t, former), Reason: "r"})
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("accepted while it is not there: %v", err)
		}
		w.eu().store = former
		w.eu().start()
		w.us().events.until(t, "us sees another store", func() bool { return w.us().events.strangers["eu"] })
		w.eu().accepts()
		claim.AttemptID = "b"
		for _, s := range w.sites {
			if answer, err := s.router.Claim(t.Context(), claim); !errors.Is(err, store.ErrUnknownHistory) {
				t.Fatalf("%s: a key that the other store knew as completed: %+v, %v", s.name, answer, err)
			}
		}
		w.eu().stop()
		w.eu().store = replacement
		w.eu().start()
		w.eu().events.until(t, "the one in between is no home", func() bool { return !w.eu().events.joined })
		w.stop()
	})
}

// A store that was replaced hears of it also from who asks it, if it can reach nobody itself.
func TestAStoreThatWasReplacedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		former := w.eu().store
		w.eu().loseStore()
		w.eu().accepts()
		w.eu().stop()
		w.silence("eu", "us")
		w.eu().store = former
		w.eu().start()
		w.eu().events.until(t, "eu is no home", func() bool { return !w.eu().events.joined })
		time.Sleep(startTime)
		_, err := w.eu().claim(anyKey, "a")
		refuses(t, err, store.ErrUnavailable, "is home to no keys yet")
		w.stop()
	})
}

// Who is not believed cannot say that a store was replaced.
func TestAStrangerReplacesNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		l, err := w.us().region.peers["eu"].newLink()
		if err != nil {
			t.Fatal(err)
		}
		defer l.conn.Close()
		for _, who := range []struct {
			storeID  string
			believed bool
		}{{store.NewStoreID(), false}, {storeID(t, w.us().store), true}} {
			_, err = l.client.Ping(t.Context(), &pb.PingRequest{Region: "eu", FromRegion: "us", FromStoreId: who.storeID, Known: &pb.KnownStore{
				Region: "eu", StoreId: store.NewStoreID(), Accepted: &pb.Acceptance{Number: 9, Reason: "r"},
			}})
			if m := w.eu().region.member(); err != nil || m.Joined == who.believed {
				t.Errorf("%+v, %v, told by %+v", m, err, who)
			}
		}
		w.stop()
	})
}

// A store whose tables are open here stands in for its region only if it has acted on the
// acceptance that is known.
func TestAStandInHasActedOnItsAcceptance(t *testing.T) {
	s := &standIn{}
	s.membership.Store(&store.Membership{StoreID: "a", Joined: true, Accepted: store.Acceptance{Number: 2}})
	for number, stands := range map[int64]bool{0: true, 2: true, 3: false} {
		if got := s.standsFor(store.PeerStore{StoreID: "a", Acceptance: store.Acceptance{Number: number}}); got != stands {
			t.Errorf("by acceptance %d: %v", number, got)
		}
	}
}

// A store that was accepted and then restored from a backup that knows nothing of it forgets anew.
func TestARestoredStoreActsOnItsAcceptanceAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.eu().loseStore()
		w.eu().accepts()
		w.eu().stop()
		w.eu().changeMembership(func(m *store.Membership) { m.Joined, m.Accepted = true, store.Acceptance{} })
		w.clock.Advance(time.Hour)
		w.eu().start()
		w.eu().events.until(t, "it is no home", func() bool { return !w.eu().events.joined })
		w.join()
		ns, err := w.eu().store.GetNamespace(t.Context(), "default")
		if err != nil || len(ns.Recovery) != 1 || !ns.Recovery[0].At.Equal(w.clock.Wall()) {
			t.Errorf("steps of the recovery: %+v, %v", ns.Recovery, err)
		}
		if got := w.eu().region.member().Accepted; got.Number != 1 || got.Actor != "omar" {
			t.Errorf("it has acted on %+v", got)
		}
		w.stop()
	})
}

// changeMembership changes what the store of a region that is stopped knows.
func (s *site) changeMembership(change func(*store.Membership)) {
	s.world.Helper()
	old, err := s.store.Membership(s.world.Context())
	next := old.Clone()
	change(&next)
	if err == nil {
		err = s.store.SetMembership(s.world.Context(), old, next)
	}
	if err != nil {
		s.world.Fatal(err)
	}
}

// A region that was restored knows which store another one had then. That is no reason for the
// one that was accepted since to serve no more; the region learns of it, from the store itself.
func TestAnOldAcceptanceIsNothingToALaterStore(t *testing.T) {
	for name, back := range map[string]int{"the first store": 0, "the second": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, `"*": fixed eu`, "eu", "us")
				var backups []store.PeerStore // what us knew
				for range 2 {
					backups = append(backups, w.us().region.member().Peers["eu"])
					w.eu().loseStore()
					w.eu().accepts()
				}
				w.us().stop()
				w.us().changeMembership(func(m *store.Membership) { m.Joined, m.Peers["eu"] = false, backups[back] })
				w.us().start()
				w.join()
				id := storeID(t, w.eu().store)
				if got := w.us().region.member().Peers["eu"]; got.StoreID != id || got.Number != 2 || got.Actor != "omar" {
					t.Errorf("us knows %+v, want %s by acceptance 2", got, id)
				}
				if log := w.eu().log.String(); strings.Contains(log, "another store was accepted") || strings.Count(log, "home to no keys") > 0 {
					t.Errorf("eu: %s", log)
				}
				w.stop()
			})
		})
	}
}

// Of two acceptances the later one holds, and the first one of two with the same number.
func TestWhichAcceptanceHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		w.stop()
		w.us().start()
		us := w.us().region
		word := func(id string, number int64) store.PeerStore {
			return store.PeerStore{StoreID: id, Acceptance: store.Acceptance{Number: number, Reason: "r"}}
		}
		for _, step := range []struct {
			told  store.PeerStore
			holds bool
		}{
			{word("a", 5), true}, {word("a", 5), true}, {word("b", 5), false}, {word("b", 4), false}, {word("a", 4), false}, {word("b", 6), true}, {word("a", 5), false},
		} {
			err := us.take(t.Context(), "eu", step.told)
			if step.holds && err != nil {
				t.Errorf("%+v: %v", step.told, err)
			}
			if !step.holds {
				refuses(t, err, store.ErrUnavailable, "does not hold")
			}
		}
		if got := us.member().Peers["eu"]; got != word("b", 6) {
			t.Errorf("us knows %+v", got)
		}
		refuses(t, us.take(t.Context(), "us", word("a", 9)), store.ErrInvalidArgument)
		refuses(t, us.take(t.Context(), "mars", word("a", 9)), store.ErrInvalidArgument)
		w.stop()
	})
}

// What an operator sees of a region that has lost its store.
func TestARegionThatLostItsStoreIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us", "ap")
		known := storeID(t, w.eu().store)
		other := storeID(t, w.eu().loseStore())
		time.Sleep(time.Minute)
		eu := w.us().region.Topology().GetRegions()[1]
		if eu.GetName() != "eu" || eu.GetStoreId() != known || eu.GetJoined() || eu.GetOtherStoreId() != other {
			t.Errorf("us shows %v; the known store is %s and the other %s", eu, known, other)
		}
		for _, s := range w.sites {
			if notice := s.region.Notice(); strings.Count(notice, "idemd region accept") != 1 {
				t.Errorf("%s: the advice is not there once: %s", s.name, notice)
			}
			if log := s.log.String(); s != w.eu() && strings.Count(log, "idemd region accept") != 1 {
				t.Errorf("%s: the log does not advise once: %s", s.name, log)
			}
		}
		w.eu().stop()
		for _, s := range []*site{w.us(), w.ap()} {
			s.world.eventually("nobody answers as eu", func() bool { return s.region.peers["eu"].otherStore() == "" })
		}
		w.stop()
	})
}

// A store that has joined serves through partitions and restarts; one that begins a recovery hears
// all the others first, which may know of later placements.
func TestAStoreThatRecoversHearsTheOthersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		w.eu().grants(anyKey, "a")
		w.eu().stop()
		w.eu().start()
		restarted := store.Key{Namespace: "default", ID: "after a restart"}
		_, err := w.eu().claim(restarted, "a")
		refuses(t, err, store.ErrUnavailable, "was just started", `to hear from region "us"`)
		time.Sleep(startTime)
		w.eu().grants(restarted, "a")
		if _, err := w.eu().router.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: storetest.Start, Reason: "restored"}); err != nil {
			t.Fatal(err)
		}
		_, err = w.eu().claim(anyKey, "b")
		refuses(t, err, store.ErrUnavailable, "is home to no keys yet", `region "us", which must know it, cannot be reached`)
		moved := store.Placement{Epoch: 2, Revision: 9, Rule: "fixed us"} // of which the backup knew nothing
		if _, err := w.us().store.PlaceNamespace(t.Context(), "default", moved); err != nil {
			t.Fatal(err)
		}
		w.us().start()
		w.join()
		if answer := w.eu().grants(store.Key{Namespace: "default", ID: "moved"}, "a"); answer.Served.Home != "us" {
			t.Errorf("served %+v", answer.Served)
		}
		w.stop()
	})
}

func TestTheStoreOfAnotherRegionIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed eu`, "eu", "us")
		w.stop()
		w.us().store = w.eu().store
		err := w.us().tryStart()
		if err == nil || !strings.Contains(err.Error(), `it is that of region "eu", and the server is started as one of region "us"`) {
			t.Fatalf("started: %v", err)
		}
	})
}

// A region that is added does not stop the others, and is no home before all know its name.
func TestARegionThatIsAddedStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, `"*": fixed eu`, "eu", "us", "ap")
		old := []*site{w.eu(), w.us()}
		for _, s := range old {
			s.regions = []string{"eu", "us"}
			s.start()
		}
		for _, s := range old {
			s.events.until(t, "it has joined", func() bool { return s.events.joined })
		}
		w.eventually("default is placed", func() bool { return w.us().region.atlas.Load().byName["default"].placed() })
		w.ap().start()
		time.Sleep(time.Minute)
		if w.ap().events.holds(func() bool { return w.ap().events.joined }) {
			t.Error("ap has joined, and nobody knows its name")
		}
		for _, s := range old {
			s.stop()
			s.regions = []string{"eu", "us", "ap"}
			s.start()
			w.us().events.wait(t, "eu", true)
			w.eventually(s.name+" serves", func() bool { return s.region.atHome() == nil })
			if took := time.Since(s.region.started); took > startTime+pingInterval {
				t.Errorf("%s serves after %v", s.name, took)
			}
			s.grants(store.Key{Namespace: "default", ID: "by " + s.name}, "a")
		}
		w.join()
		w.stop()
	})
}

// Another region's tables that this process has open are asked in its stead only if they are the
// store that is known, and a home.
func TestAStandInIsTheStoreThatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, `"*": fixed us`, "eu", "us")
		other := storetest.NewMemory(w.clock)
		w.prepare = func(s *site, c *Config) {
			if s.name == "eu" {
				c.StandIns = map[string]store.Backend{"us": other}
			}
		}
		w.startAll()
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		_, err := w.eu().claim(anyKey, "a")
		refuses(t, err, store.ErrHomeUnreachable)
		w.stop()
	})
}
