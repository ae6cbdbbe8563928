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
)

// in is what a region's own store keeps of a namespace.
func (s *site) in(name string) store.Namespace {
	s.world.Helper()
	ns, err := s.store.GetNamespace(s.world.Context(), name)
	if err != nil {
		s.world.Fatalf("%s: %v", s.name, err)
	}
	return ns
}

// createHere has a namespace in one region's store alone.
func (s *site) createHere(ns store.Namespace) {
	s.world.Helper()
	if _, err := s.store.CreateNamespace(s.world.Context(), ns); err != nil {
		s.world.Fatal(err)
	}
	if err := s.region.refresh(s.world.Context()); err != nil {
		s.world.Fatal(err)
	}
}

// trouble is what a region says of a namespace, once all have been asked.
func (s *site) trouble(name string) string {
	s.world.Helper()
	if err := s.region.refresh(s.world.Context()); err != nil {
		s.world.Fatal(err)
	}
	if err := s.region.hearAll(s.world.Context()); err != nil {
		s.world.Fatal(err)
	}
	for _, p := range s.region.Topology().GetPlacements() {
		if p.GetNamespace() == name {
			if p.GetTrouble() != "" && !strings.Contains(s.region.Notice(), p.GetTrouble()) {
				s.world.Errorf("the notice does not say %q: %q", p.GetTrouble(), s.region.Notice())
			}
			return p.GetTrouble()
		}
	}
	return "not listed"
}

// Settings that came to differ are shown, and are the same everywhere once they are set again,
// also if they are what the asked region has.
func TestSettingsAreSetRightEverywhere(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	settings := store.Namespace{Name: "payments", Retention: 6 * time.Hour, LapsePolicy: store.Hold}
	if _, err := w.us().router.CreateNamespace(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	changed := w.us().in("payments")
	changed.LapsePolicy = store.Takeover
	if _, err := w.us().store.UpdateNamespace(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := w.us().region.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := `lapse policy is hold in region eu and takeover in region us; set them again with idemd namespace set`
	if got := w.eu().trouble("payments"); !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := w.eu().router.UpdateNamespace(t.Context(), w.eu().in("payments")); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.sites {
		if s.in("payments").LapsePolicy != store.Hold || s.trouble("payments") != "" {
			t.Errorf("%s: %+v, %q", s.name, s.in("payments"), s.trouble("payments"))
		}
	}
}

// What an operator has just done everywhere is not shown as missing, by whichever region: none has
// told the others yet when it is asked.
func TestWhatWasDoneEverywhereIsNoTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, everythingSpread, "eu", "us", "ap")
		quiet := func(after string) {
			t.Helper()
			for _, s := range w.sites {
				if notice := s.region.Notice(); notice != "" {
					t.Errorf("%s, after %s: the notice is %q", s.name, after, notice)
				}
				for _, p := range s.region.Topology().GetPlacements() {
					if p.GetTrouble() != "" || p.GetPlacement().GetEpoch() != 1 {
						t.Errorf("%s, after %s: %v", s.name, after, p)
					}
				}
			}
		}
		if _, err := w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "payments"}); err != nil {
			t.Fatal(err)
		}
		quiet("it was created")
		if _, err := w.ap().router.UpdateNamespace(t.Context(), store.Namespace{Name: "payments", LapsePolicy: store.Hold}); err != nil {
			t.Fatal(err)
		}
		quiet("it was set")

		// Other servers of the regions do it, which these ones have not seen.
		for _, s := range w.sites {
			if _, err := s.store.CreateNamespace(t.Context(), store.Namespace{Name: "refunds"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.eu().region.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		quiet("other servers created it")
		for _, s := range w.sites {
			changed := s.in("refunds")
			changed.LapsePolicy = store.Hold
			if _, err := s.store.UpdateNamespace(t.Context(), changed); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.eu().region.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		quiet("other servers set it")
		w.stop()
	})
}

// What could not be asked again is said to be what was heard last.
func TestATroubleThatIsOfTheLastHearing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": spread eu us`, "eu", "us")
		w.us().stop()
		w.eu().createHere(store.Namespace{Name: "payments"})
		var got string
		for _, p := range w.eu().region.Topology().GetPlacements() {
			if p.GetNamespace() == "payments" {
				got = p.GetTrouble()
			}
		}
		if want := `region "us" did not have this namespace when it was last heard; if it stays so, create it once more`; !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		w.eu().stop()
	})
}

// A tier that differs cannot be set right: nothing is changed, and it is said what to do.
func TestTiersThatDiffer(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	w.eu().createHere(store.Namespace{Name: "payments", Tier: store.TierDay, Retention: time.Hour})
	w.us().createHere(store.Namespace{Name: "payments", Tier: store.TierHour, Retention: time.Hour})
	for range 2 {
		_, err := w.eu().router.UpdateNamespace(t.Context(), store.Namespace{Name: "payments", Retention: 30 * time.Minute})
		refuses(t, err, store.ErrInvalidArgument, "nothing was changed", "day in region eu and hour in region us", "create another namespace")
		_, err = w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "payments", Tier: store.TierDay, Retention: time.Hour})
		refuses(t, err, store.ErrNamespaceExists, "tier is hour in region us and day in what was asked")
	}
	if e, u := w.eu().in("payments"), w.us().in("payments"); e.Retention != time.Hour || u.Retention != time.Hour {
		t.Errorf("retention %v and %v", e.Retention, u.Retention)
	}
	if _, err := w.ap().store.GetNamespace(t.Context(), "payments"); !errors.Is(err, store.ErrNamespaceUnknown) {
		t.Errorf("ap has it: %v", err)
	}
	if got := w.us().trouble("payments"); got == "" || got == "not listed" {
		t.Errorf("it is not shown: %q", got)
	}
	us := w.us().region
	us.noteMoves([]store.Namespace{{Name: "orders", Placement: store.Placement{Rule: "fixed eu", Move: store.Move{To: "ap", Phase: store.MoveFrozen}}}})
	if notice := us.Notice(); !strings.Contains(notice, `namespace "payments" has no home yet`) || !strings.Contains(notice, `namespace "orders" is on its way`) {
		t.Errorf("the notice for operators: %q", notice)
	}
	want := "namespaces that are on their way to another region: 1 (idemd region list names them); namespaces that are not the same everywhere, or have no home: 1 (idemd region list names them)"
	if notice := us.NoticeForAll(); notice != want {
		t.Errorf("the notice for all: %q, want %q", notice, want)
	}
}

// A namespace that one region has comes into all by creating it as it is, or by setting anything.
func TestANamespaceOfOneRegion(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	for _, name := range []string{"one", "two"} {
		w.us().createHere(store.Namespace{Name: name, Retention: 2 * time.Hour})
	}
	for _, name := range []string{"one", "two"} {
		if got := w.eu().trouble(name); !strings.Contains(got, `is not in region "eu": create it once more`) {
			t.Errorf("eu shows %q", got)
		}
	}
	_, err := w.eu().router.GetNamespace(t.Context(), "one")
	refuses(t, err, store.ErrNamespaceUnknown, `region "eu" does not have namespace "one", and region "us" has it`)
	_, err = w.eu().claim(store.Key{Namespace: "one", ID: "k"}, "a")
	refuses(t, err, store.ErrNamespaceUnknown, `region "us" has it`)
	_, err = w.eu().router.UpdateNamespace(t.Context(), store.Namespace{Name: "one", Retention: time.Hour})
	refuses(t, err, store.ErrNamespaceUnknown, "create it once more")

	_, err = w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "one", Retention: time.Hour})
	refuses(t, err, store.ErrNamespaceExists, `region "us" has it with other settings`, "retention is 2h in region us and 1h in what was asked", "nothing was created")
	if _, err := w.eu().store.GetNamespace(t.Context(), "one"); !errors.Is(err, store.ErrNamespaceUnknown) {
		t.Errorf("eu has it: %v", err)
	}
	if _, err := w.eu().router.CreateNamespace(t.Context(), w.us().in("one")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.us().router.UpdateNamespace(t.Context(), store.Namespace{Name: "two", Retention: 3 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.sites {
		if s.in("one").Retention != 2*time.Hour || s.in("two").Retention != 3*time.Hour {
			t.Errorf("%s: %+v, %+v", s.name, s.in("one"), s.in("two"))
		}
		s.grants(store.Key{Namespace: "one", ID: s.name}, "a")
	}
}

// An update of what was changed since it was read, here or from another region, is refused before any
// region hears of it.
func TestAnUpdateOfWhatWasChangedSince(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	if _, err := w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "payments", Retention: 6 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	read := w.eu().in("payments")
	if _, err := w.us().router.UpdateNamespace(t.Context(), store.Namespace{Name: "payments", Retention: 8 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	read.IfUpdatedAt, read.LapsePolicy = read.UpdatedAt, store.Hold
	_, err := w.eu().router.UpdateNamespace(t.Context(), read)
	refuses(t, err, store.ErrNamespaceChanged, "nothing was done", "read it again")
	both := w.eu().in("payments")
	both.IfUpdatedAt, both.LapsePolicy = both.UpdatedAt, store.Hold
	for range 2 { // also again, as whoever lost the answer would
		if _, err := w.eu().router.UpdateNamespace(t.Context(), both); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range w.sites {
		if got := s.in("payments"); got.Retention != 8*time.Hour || got.LapsePolicy != store.Hold {
			t.Errorf("%s: %+v", s.name, got)
		}
	}
}

// An update that a region refuses, or that breaks off, does not look as if it was made, and is
// made by asking for it again.
func TestAnUpdateThatBreaksOff(t *testing.T) {
	w := build(t, everythingSpread, "eu", "us", "ap")
	refusing := true
	w.prepare = func(s *site, c *Config) {
		c.Authorize = func(_ context.Context, _, method, namespace string) error {
			if s.name == "ap" && refusing && namespace == "payments" && method == pb.AdminService_UpdateNamespace_FullMethodName {
				return store.Refuse(store.ErrUnavailable, "not now")
			}
			return nil
		}
	}
	w.startAll()
	if _, err := w.eu().router.CreateNamespace(t.Context(), store.Namespace{Name: "payments", Retention: 6 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, err := w.eu().router.UpdateNamespace(t.Context(), store.Namespace{Name: "payments", Retention: 8 * time.Hour})
	refuses(t, err, store.ErrUnavailable, `region "ap": `, "do it again")
	if got := w.eu().in("payments").Retention; got != 6*time.Hour {
		t.Errorf("the asked region has %v though it was refused", got)
	}
	refusing = false
	if _, err := w.eu().router.UpdateNamespace(t.Context(), store.Namespace{Name: "payments", Retention: 8 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.sites {
		if got := s.in("payments").Retention; got != 8*time.Hour {
			t.Errorf("%s has %v", s.name, got)
		}
	}
}

// While a namespace moves, as far as any region knows, its settings are changed nowhere.
func TestSettingsStayWhileANamespaceMoves(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	p := w.us().in(store.DefaultNamespace).Placement
	p.Revision, p.Move = p.Revision+1, store.Move{To: "us", Phase: store.MoveFlipped}
	if _, err := w.us().store.PlaceNamespace(t.Context(), store.DefaultNamespace, p); err != nil {
		t.Fatal(err)
	}
	if err := w.us().region.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := w.eu().router.UpdateNamespace(t.Context(), store.Namespace{Name: store.DefaultNamespace, Retention: time.Hour})
	refuses(t, err, store.ErrNamespaceMoving, "on its way to region", "nothing was")
	for _, s := range w.sites {
		if got := s.in(store.DefaultNamespace).Retention; got != store.DefaultRetention {
			t.Errorf("%s has %v", s.name, got)
		}
	}
}

// A home that refuses what the asked region allows is named, and what may differ.
func TestRightsThatDifferAtTheHome(t *testing.T) {
	for _, denial := range []error{store.ErrPermissionDenied, store.ErrNamespaceUnknown} {
		w := build(t, `"*": fixed us`, "eu", "us")
		w.prepare = func(s *site, c *Config) {
			c.Authorize = func(context.Context, string, string, string) error {
				return store.Refuse(denial, "as it is told")
			}
		}
		w.startAll()
		_, err := w.eu().claim(store.Key{Namespace: store.DefaultNamespace, ID: "k"}, "a")
		refuses(t, err, denial, `region "us", where it lives, refuses what region "eu" allows`, "--policy")
	}
}
