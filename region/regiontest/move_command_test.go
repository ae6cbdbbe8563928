package regiontest

import (
	"strings"
	"testing"

	"github.com/idemd/idemd/store"
)

// moveCommand runs the operator's command in one region, by way of that region's server.
func (w *world) moveCommand(in string, args ...string) *Process {
	w.t.Helper()
	return start(w.t, w.sites[in], w.insecurely(append([]string{"region", "move", "moving", "--addr=" + w.Addr(in)}, args...))...)
}

// The command that moves a namespace is killed at each step, and another one, by way of another
// region's server, ends the move, or gives it up. What was completed stays so throughout.
func TestAMoveCommandIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: map[string]string{"moving": "spread eu us ap", "*": "fixed eu"}})
	w.create("eu", "moving")
	w.placed("moving")
	var keys []store.Key
	for range 30 {
		key := w.fresh("moving")
		got, _, err := w.claim(w.bare["ap"], key, "a")
		if err != nil || got.Granted == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := w.bare["ap"].Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: got.Granted.Fence, Outcome: &store.Outcome{Body: []byte(key.ID)}}); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	for i, step := range []string{"frozen", "sealed", "copied", "flipped", "forgotten", "done"} {
		target, from, other := allRegions[i%3], allRegions[(i+1)%3], allRegions[(i+2)%3]
		killed := w.moveCommand(from, target)
		if _, reached := killed.Line("step: "+step, moveWithin); !reached {
			t.Fatalf("to %s: the step %s was not reached:\n%s", target, step, killed.Output())
		}
		killed.Kill()
		// The server may not have noticed yet that nobody follows, and be at it still: then one
		// of the two loses, and says so.
		within(t, moveWithin, "to "+target+", killed when "+step+": another command ends it", func() error {
			again := w.moveCommand(other, target)
			code := again.Wait(moveWithin)
			switch {
			case code == 0 && strings.Contains(again.Output(), "step: done\n"):
				return nil
			case code != 1 || !strings.Contains(again.Output(), "somebody else moves namespace"):
				t.Fatalf("to %s, killed when %s: the command that goes on ends with %d:\n%s", target, step, code, again.Output())
			}
			return errNotYet
		})
		w.livesIn("moving", target)
		w.stillCompleted(keys)
	}
	killed := w.moveCommand("eu", "eu")
	if _, reached := killed.Line("step: frozen", moveWithin); !reached {
		t.Fatalf("the move back did not begin:\n%s", killed.Output())
	}
	killed.Kill()
	home := "ap" // where the last move went
	within(t, moveWithin, "it is given up, unless it has arrived", func() error {
		given := w.moveCommand("us", "eu", "--abandon")
		code, said := given.Wait(moveWithin), given.Output()
		switch {
		case code == 0 && strings.Contains(said, "step: abandoned\n"):
			return nil
		case code == 1 && strings.Contains(said, "no move of namespace"):
			if home = "eu"; !strings.Contains(said, `"fixed eu"`) {
				home = "ap"
			}
			return nil
		case code != 1 || !strings.Contains(said, "somebody else moves namespace") && !strings.Contains(said, "have arrived"): // which its server ends
			t.Fatalf("giving it up ends with %d:\n%s", code, said)
		}
		return errNotYet
	})
	w.livesIn("moving", home)
	w.stillCompleted(keys)
}

// stillCompleted checks, in every region, that keys are answered with their outcomes.
func (w *world) stillCompleted(keys []store.Key) {
	w.t.Helper()
	for name, s := range w.bare {
		for _, key := range keys {
			got, _, err := w.claim(s, key, "b")
			if err != nil || got.Completed == nil || string(got.Completed.Outcome.Body) != key.ID {
				w.t.Fatalf("%s in %s: %+v, %v; want its outcome", key.ID, name, got, err)
			}
		}
	}
}
