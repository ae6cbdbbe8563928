package region

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// A clock that is set back while the namespace is sealed is not waited for in silence.
func TestAMoverSaysThatItWaitsForTheClock(t *testing.T) {
	for _, test := range []struct {
		behind time.Duration
		says   string
		err    error
	}{
		{0, "", nil},
		{30 * time.Second, "is 30s behind", nil},
		{time.Hour, "", store.ErrInvalidArgument},
	} {
		w := newMoveWorld(t, 1, "fixed us", 0)
		req := MoveRequest{Namespace: movedNamespace, To: "eu"}
		var said []string
		tell := func(s Step) error {
			if s.Name == "copied" {
				w.clocks["us"].Advance(test.behind)
				return errCrashed
			}
			return nil
		}
		step := func() error { return nil }
		if err := w.mover("eu", step).Move(t.Context(), req, tell); !errors.Is(err, errCrashed) {
			t.Fatal(err)
		}
		err := w.mover("eu", step).Move(t.Context(), req, func(s Step) error {
			said = append(said, s.Detail)
			return nil
		})
		if !errors.Is(err, test.err) || err != nil && !strings.Contains(err.Error(), "mend the clock") {
			t.Errorf("%v behind: %v, want %v", test.behind, err, test.err)
		}
		if told := strings.Join(said, "; "); test.says == "" && strings.Contains(told, "behind") || !strings.Contains(told, test.says) {
			t.Errorf("%v behind: it says %q, want %q", test.behind, told, test.says)
		}
		if test.err == nil {
			w.checkArrived("eu")
		} else if w.elapsed > time.Minute {
			t.Errorf("it waited %v", w.elapsed)
		}
	}
}

// restarting is a region whose server is started again, some times, while its records are listed.
type restarting struct {
	Party
	starts int
}

func (f *restarting) Export(ctx context.Context, namespace string, revision int64, token string) (Exported, error) {
	if token != "" && f.starts > 0 {
		f.starts--
		return Exported{}, store.Refuse(store.ErrInvalidArgument, "the page token is not one of this server")
	}
	return f.Party.Export(ctx, namespace, revision, token)
}

// An old home whose server is started again does not know the listing any more that was going on: it begins
// again, and is no refusal of the move.
func TestAListingThatIsForgottenBeginsAgain(t *testing.T) {
	for _, test := range []struct {
		starts int
		err    error
	}{{0, nil}, {3, nil}, {maxCopyAgain + 1, store.ErrUnavailable}} {
		w := newMoveWorld(t, 1, "fixed us", 0)
		const keys = store.MaxPageSize + 10
		for i := range keys {
			claim := store.ClaimRequest{Key: store.Key{Namespace: movedNamespace, ID: fmt.Sprint(i)}, AttemptID: "a", Epoch: 1}
			g, err := w.stores["us"].Claim(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			done := store.CompleteRequest{Key: claim.Key, AttemptID: "a", Fence: g.Granted.Fence, Epoch: 1, Outcome: &store.Outcome{}}
			if _, err := w.stores["us"].Complete(t.Context(), done); err != nil {
				t.Fatal(err)
			}
		}
		m := w.mover("eu", func() error { return nil })
		m.Peers["us"] = &restarting{m.Peers["us"], test.starts}
		req := MoveRequest{Namespace: movedNamespace, To: "eu"}
		copied := int64(0)
		err := m.Move(t.Context(), req, func(s Step) error {
			copied = max(copied, s.Count)
			return nil
		})
		if !errors.Is(err, test.err) {
			t.Fatalf("%d starts: %v, want %v", test.starts, err, test.err)
		}
		if err != nil {
			w.finishMove(req)
		} else if copied != keys {
			t.Errorf("%d starts: %d were copied, want %d", test.starts, copied, keys)
		}
		w.checkArrived("eu")
	}
}
