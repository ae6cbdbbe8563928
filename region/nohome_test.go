package region

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Who is there and says that no region serves the key for now does not look, here or over the wire, like
// one who is not there: the key may have been used.
func TestWhereThereIsNoHomeSomebodySaysSo(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world)
		asks   string
	}{
		"the home has not joined": {func(w *world) {
			w.ap().stop()
			w.us().events.wait(w, "ap", false)
			w.eu().restores()
			w.us().events.wait(w, "eu", true)
		}, "us"},
		"and is asked itself": {func(w *world) {
			w.ap().stop()
			w.us().events.wait(w, "ap", false)
			w.eu().restores()
			w.us().events.wait(w, "eu", true)
		}, "eu"},
		"it has just been started": {func(w *world) {
			w.ap().stop()
			w.eu().events.wait(w, "ap", false)
			w.eu().stop()
			w.us().events.wait(w, "eu", false)
			w.eu().start()
		}, "eu"},
		"the regions dispute": {func(w *world) {
			w.stop()
			p := store.Placement{Epoch: 1, Revision: 9, Rule: "fixed us"}
			if _, err := w.us().store.PlaceNamespace(w.Context(), store.DefaultNamespace, p); err != nil {
				w.Fatal(err)
			}
			p.Rule = "fixed eu"
			if _, err := w.eu().store.PlaceNamespace(w.Context(), store.DefaultNamespace, p); err != nil {
				w.Fatal(err)
			}
			w.startAll()
			time.Sleep(startTime)
		}, "eu"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, `"*": fixed eu`, "ap", "eu", "us")
				test.change(w)
				_, err := w.sites[test.asks].claim(store.Key{Namespace: store.DefaultNamespace, ID: "k"}, "a")
				refuses(t, err, store.ErrNoHome)
				refuses(t, storepb.FromStatus(storepb.ToStatus(err).Err()), store.ErrNoHome)
				w.stop()
			})
		})
	}
}
