package region

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
)

// A move whose mover has stopped leaves the namespace where it is: that is said, and for how long,
// until somebody goes on with it.
func TestAMoveThatLastsIsShown(t *testing.T) {
	for _, test := range []struct {
		step      string
		place     store.Placement
		abandoned bool // it can be
	}{
		{"clearing", store.Placement{Epoch: 1, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveFlipped}}, false},
		{"frozen", store.Placement{Epoch: 1, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveFrozen}}, true},
		{"sealed", store.Placement{Epoch: 1, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveSealed}}, true},
		{"sealed", store.Placement{Epoch: 2, Rule: "fixed us", Move: store.Move{To: "us", Phase: store.MoveSealed}}, false}, // once more
		{"flipped", store.Placement{Epoch: 2, Rule: "fixed us", Move: store.Move{To: "us", Phase: store.MoveFlipped}}, false},
	} {
		t.Run(test.step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, `"*": fixed eu`, "eu", "us")
				placed := func(p store.Placement) {
					p.Revision = w.eu().region.atlas.Load().byName["default"].ns.Placement.Revision + 1
					for _, s := range w.sites {
						if _, err := s.store.PlaceNamespace(t.Context(), "default", p); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(10 * time.Minute)
				}
				placed(test.place)
				for _, s := range w.sites {
					notice := s.region.Notice()
					for _, want := range []string{`namespace "default" is on its way to region "us", ` + test.step + " since ", "idemd region move default us"} {
						if !strings.Contains(notice, want) {
							t.Errorf("%s does not say %q: %s", s.name, want, notice)
						}
					}
					if strings.Contains(notice, "--abandon") != test.abandoned {
						t.Errorf("%s: %s", s.name, notice)
					}
					if got := s.events.moving["default"]; got != test.step+", for 10m0s" {
						t.Errorf("%s observes %q", s.name, got)
					}
				}
				test.place.Move = store.Move{}
				placed(test.place)
				for _, s := range w.sites {
					if notice := s.region.Notice(); notice != "" {
						t.Errorf("%s: %s", s.name, notice)
					}
					if got := s.events.moving["default"]; !strings.HasPrefix(got, ",") {
						t.Errorf("%s observes %q", s.name, got)
					}
				}
				w.stop()
			})
		})
	}
}
