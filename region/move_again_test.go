package region

import (
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// A new home is restored from before the move when it has flipped, and the old one has not forgotten: who
// goes on with the move copies what is known once more before it is forgotten, also if that breaks off.
func TestWhatARestoredNewHomeHasLostIsCopiedAgain(t *testing.T) {
	for _, dies := range []string{"", "sealed", "copied", "flipped", "and lifted before"} {
		t.Run(dies, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, `"*": fixed us`, "ap", "eu", "us")
				w.us().createPay(time.Hour)
				grant := w.us().grants(payKey, "a")
				held, err := w.us().store.InspectRecord(t.Context(), payKey)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.us().router.Complete(t.Context(), store.CompleteRequest{Key: payKey, AttemptID: "a", Fence: grant.Granted.Fence, Outcome: &store.Outcome{}}); err != nil {
					t.Fatal(err)
				}
				w.clock.Advance(time.Minute)
				w.stop()
				p := store.Placement{Epoch: 1, Revision: 8, Rule: "fixed us", Move: store.Move{To: "eu", Phase: store.MoveSealed}}
				for i := range 2 {
					for _, s := range []*site{w.us(), w.ap()} {
						if _, err := s.store.PlaceNamespace(t.Context(), "pay", p); err != nil {
							t.Fatal(err)
						}
					}
					if i == 0 { // ap has it from a move there that was given up
						if err := w.ap().store.ImportRecords(t.Context(), "pay", p.Revision, []store.Inspection{held}); err != nil {
							t.Fatal(err)
						}
					}
					p = store.Placement{Epoch: 2, Revision: 9, Rule: "fixed eu", Move: store.Move{To: "eu", Phase: store.MoveFlipped}}
				}
				w.eu().beginRecovery()
				w.startAll()
				time.Sleep(startTime)
				w.knowsNothing()
				_, err = w.eu().claim(payKey, "b")
				refuses(t, err, store.ErrUnknownHistory)
				switch dies {
				case "":
				case "flipped":
					w.eu().movesPayHereUntil("copied")
					w.eu().movesPayHereUntil("flipped")
				case "and lifted before":
					req := store.LiftRecoveryRequest{Namespace: "pay", NothingKnown: true, LeasesEnded: true, Reason: "settled"}
					if _, err := w.eu().router.LiftRecovery(t.Context(), req); err != nil {
						t.Fatal(err)
					}
				default:
					w.eu().movesPayHereUntil(dies)
					err := w.eu().region.MoveNamespace(t.Context(), &pb.MoveNamespaceRequest{Namespace: "pay", ToRegion: "eu", Abandon: true}, func(*pb.MoveNamespaceResponse) error { return nil })
					refuses(t, err, store.ErrInvalidArgument, "have arrived")
				}
				w.eu().movePayHere()
				for name, s := range w.sites {
					answer, err := s.claim(payKey, "b")
					if err != nil || answer.Completed == nil {
						t.Errorf("%s: %+v, %v", name, answer, err)
					}
				}
				if _, err := w.us().store.InspectRecord(t.Context(), payKey); err == nil {
					t.Error("the old home has not forgotten")
				}
				if p := w.eu().pay().Placement; p.Epoch != 2 || p.Move != (store.Move{}) {
					t.Errorf("the placement is %+v", p)
				}
				w.stop()
			})
		})
	}
}

// What others remember of an attempt does not take the place of what the new home knows of it.
func TestWhoKnowsMoreOfAKey(t *testing.T) {
	rec := func(fence int64, state store.State) *store.Record {
		return &store.Record{Fence: fence, State: state}
	}
	ordered := []*store.Record{
		rec(1, store.StateCompleted), rec(2, store.StateInProgress), rec(2, store.StateReleased), rec(2, store.StateCompleted), rec(3, store.StateInProgress),
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := knowsMore(a, b); got != (i > j) {
				t.Errorf("%+v knows more than %+v: %v", a, b, got)
			}
		}
	}
}
