package region

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
)

// claimed has an attempt claim a key.
func (s *site) claim(key store.Key, attempt string) (store.ClaimAnswer, error) {
	return s.router.Claim(s.world.Context(), store.ClaimRequest{Key: key, AttemptID: attempt})
}

// grants fails the test unless the key is granted.
func (s *site) grants(key store.Key, attempt string) store.ClaimAnswer {
	s.world.Helper()
	answer, err := s.claim(key, attempt)
	if err != nil || answer.Granted == nil {
		s.world.Fatalf("%s: Claim of %v: %+v, %v", s.name, key, answer, err)
	}
	return answer
}

// refuses fails the test unless the error is of that kind and says that.
func refuses(t testing.TB, err error, sentinel error, says ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("got %v, want %v", err, sentinel)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Fatalf("%q does not say %q", err, text)
		}
	}
}

var anyKey = store.Key{Namespace: store.DefaultNamespace, ID: "order-1"}

func TestTheFirstPlacementWaitsForAllRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, everythingSpread, "eu", "us", "ap")
		w.eu().start()
		w.us().start()
		w.eu().events.wait(t, "us", true)
		time.Sleep(time.Minute)
		_, err := w.eu().claim(anyKey, "a")
		refuses(t, err, store.ErrUnavailable, `namespace "default" has no home yet`, `region "ap" has not been heard yet`)
		if placed, _ := w.us().store.GetNamespace(t.Context(), "default"); placed.Placement != (store.Placement{}) {
			t.Fatalf("it was placed without ap: %+v", placed.Placement)
		}
		if notice := w.eu().region.Notice(); !strings.Contains(notice, `region "ap" has been unreachable`) || !strings.Contains(notice, `"default" has no home`) {
			t.Errorf("the notice is %q", notice)
		}

		w.ap().start()
		w.join()
		want := store.Placement{Epoch: 1, Revision: 1, Rule: "spread ap eu us"}
		w.eventually("all regions have the same placement", func() bool {
			for _, s := range w.sites {
				if ns, _ := s.store.GetNamespace(t.Context(), "default"); ns.Placement != want {
					return false
				}
			}
			return true
		})
		for _, s := range w.sites {
			s.grants(store.Key{Namespace: "default", ID: "of " + s.name}, "a")
			if notice := s.region.Notice(); notice != "" {
				t.Errorf("%s: the notice is %q", s.name, notice)
			}
		}
		w.stop()
	})
}

// eventually waits, in a bubble, for what the regions do by themselves.
func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	for range 200 {
		if holds() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.Fatalf("it does not come about that %s", what)
}

func (w *world) stop() {
	for _, s := range w.sites {
		s.stop()
	}
}

func TestRegionsThatProposeDifferentlyPlaceNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, everythingSpread, "eu", "us")
		w.eu().rules = `"*": fixed eu`
		w.us().rules = `"*": fixed us`
		w.startAll()
		time.Sleep(time.Minute)
		_, err := w.eu().claim(anyKey, "a")
		refuses(t, err, store.ErrUnavailable, `the topology file of region "us" says "fixed us", and this region's "fixed eu"; make them agree`)
		_, err = w.us().claim(anyKey, "a")
		refuses(t, err, store.ErrUnavailable, `make them agree`)
		if !strings.Contains(w.us().log.String(), "make them agree") {
			t.Errorf("the log does not say so: %s", w.us().log)
		}

		// Somebody mends the file.
		w.us().stop()
		w.us().rules = `"*": fixed eu`
		w.us().start()
		w.join()
		w.us().grants(anyKey, "a")
		w.stop()
	})
}

func TestRecordsStayWhereTheyAreUntilTheyAreMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for rule, home := range map[string]string{`"*": spread eu us`: "", `"*": fixed eu`: "", `"*": fixed us`: "us"} {
			w := build(t, rule, "eu", "us")
			old, err := w.us().store.Claim(t.Context(), store.ClaimRequest{Key: anyKey, AttemptID: "a"}) // before there were regions
			if err != nil || old.Granted == nil {
				t.Fatal(old, err)
			}
			w.startAll()
			answer, err := w.eu().claim(anyKey, "a")
			if home == "" {
				refuses(t, err, store.ErrUnavailable, `region "us" has records of it`, "write fixed us in all topology files")
			} else if err != nil || answer.Granted == nil || answer.Granted.Fence != old.Granted.Fence || answer.Served.Home != home {
				t.Errorf("%s: %+v, %v", rule, answer, err)
			}
			w.stop()
		}
	})
}

func TestANamespaceThatNoRulePlacesIsRefused(t *testing.T) {
	w := build(t, `payments: fixed eu`, "eu", "us")
	if err := w.eu().tryStart(); err == nil || !strings.Contains(err.Error(), `namespace "default" of the store has no placement`) {
		t.Fatalf("start: %v", err)
	}
	w = start(t, "default: fixed eu", "eu", "us")
	_, err := w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "payments"})
	refuses(t, err, store.ErrInvalidArgument, `no rule of the topology says where the keys of namespace "payments" live`)
}

func TestStoredPlacementsCountAndNotTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.eu().stop()
		w.eu().rules = `"*": fixed eu`
		w.eu().start()
		w.join()
		if answer := w.eu().grants(anyKey, "a"); answer.Served != (store.Served{Home: "us", Forwarded: true, Epoch: 1}) {
			t.Errorf("served %+v", answer.Served)
		}
		if log := w.eu().log.String(); !strings.Contains(log, "the stored one counts") {
			t.Errorf("the log does not tell: %s", log)
		}
		w.stop()
	})
}

// A region that comes later and is nobody's home learns where keys live.
func TestARegionThatComesLaterLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, `"*": spread eu us`, "eu", "us", "ap")
		for _, s := range []*site{w.eu(), w.us()} {
			s.regions = []string{"eu", "us"}
			s.start()
		}
		for _, s := range []*site{w.eu(), w.us()} {
			for name := range s.region.peers {
				s.events.wait(t, name, true)
			}
		}
		w.eventually("default is placed", func() bool { return w.eu().region.atlas.Load().byName["default"].placed() })
		for _, s := range []*site{w.eu(), w.us()} {
			s.stop()
			s.regions = []string{"eu", "us", "ap"}
			s.start()
		}
		w.ap().start()
		w.ap().events.wait(t, "eu", true)
		w.ap().events.wait(t, "us", true)
		for _, s := range []*site{w.eu(), w.us()} {
			w.eventually(s.name+" serves", func() bool { return s.region.atHome() == nil })
		}
		w.eventually("ap has learned", func() bool { return w.ap().region.atlas.Load().byName["default"].placed() })
		for i := range 8 {
			w.ap().grants(store.Key{Namespace: "default", ID: fmt.Sprint("order-", i)}, "a")
		}
		w.stop()
	})
}

func TestADisputeGrantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, everythingSpread, "eu", "us")
		for name, s := range w.sites { // as two regions that did not know of each other
			if _, err := s.store.PlaceNamespace(t.Context(), "default", store.Placement{Epoch: 1, Revision: 1, Rule: "fixed " + name}); err != nil {
				t.Fatal(err)
			}
		}
		w.sites["eu"].rules, w.sites["us"].rules = `"*": fixed eu`, `"*": fixed eu`
		key := store.Key{Namespace: "default", ID: "held"}
		held, err := w.eu().store.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a", Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		w.startAll()
		for _, s := range w.sites {
			s.events.until(t, "the dispute is seen", func() bool { return s.events.disputed == 1 && s.events.joined })
			_, err := s.claim(anyKey, "a")
			refuses(t, err, store.ErrUnavailable, `where namespace "default" lives is disputed`, `"fixed eu"`, `"fixed us"`)
			if !strings.Contains(s.log.String(), "the placement of a namespace is disputed") || !strings.Contains(s.region.Notice(), "is disputed") {
				t.Errorf("%s does not say it aloud: %s", s.name, s.log)
			}
		}
		// Whoever acts may still say what became of it.
		if _, err := w.eu().router.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: held.Granted.Fence, Outcome: &store.Outcome{}}); err != nil {
			t.Errorf("Complete: %v", err)
		}
		w.stop()
	})
}
