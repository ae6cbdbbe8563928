package regiontest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// moveWithin is how long a move may take, attempts that have to end included.
const moveWithin = 60 * time.Second

// moveCase is who is killed after which step of a move.
type moveCase struct{ step, victim string }

var (
	moveSteps   = []string{"frozen", "sealed", "copied", "flipped", "done"}
	moveVictims = []string{"source", "target", "bystander", "mover", "nobody"}
)

// moveCases are all of them, or a sample in which every step and every victim is, another one
// every day.
func moveCases(long bool) []moveCase {
	var cases []moveCase
	for i, step := range moveSteps {
		for j, victim := range moveVictims {
			if long || (i+j+time.Now().YearDay())%len(moveVictims) == 0 {
				cases = append(cases, moveCase{step, victim})
			}
		}
	}
	return cases
}

func TestMovesUnderLoad(t *testing.T) {
	t.Parallel()
	placements := map[string]string{"moving": "fixed eu", "*": "spread eu us ap"}
	w := newWorld(t, Plan{Placements: placements, Delay: 30 * time.Millisecond})
	w.create("eu", "moving")
	w.placed("moving", store.DefaultNamespace)
	c := w.crowd(4, "moving")
	home, length := "eu", stress(t)
	for begun := time.Now(); ; {
		for n, test := range moveCases(length > 0) {
			target := allRegions[n%len(allRegions)]
			if target == home {
				target = allRegions[(n+1)%len(allRegions)]
			}
			w.move(test, home, target)
			home = target
		}
		if time.Since(begun) >= length {
			break
		}
	}
	c.finish(t)
}

// move has one move broken off by the death of one that takes part in it, and ended.
func (w *world) move(test moveCase, source, target string) {
	w.t.Helper()
	begun := time.Now()
	m := w.mover("moving", target, false)
	if !m.reaches(test.step, moveWithin) {
		w.t.Fatalf("%+v, %s to %s: the step was not reached: %s", test, source, target, m.log())
	}
	switch test.victim {
	case "nobody":
	case "mover":
		m.kill()
	default:
		victim := w.region(test.victim, source, target)
		w.Kill(victim)
		w.Restart(victim)
	}
	broken := m.ends(moveWithin)
	tries := 0
	within(w.t, moveWithin, fmt.Sprintf("%+v, %s to %s: it can be resumed and ends", test, source, target), func() error {
		tries++
		return w.mover("moving", target, false).ends(moveWithin)
	})
	w.livesIn("moving", target)
	for _, from := range allRegions {
		w.grants(healedWithin, w.bare[from], from, "moving")
	}
	w.t.Logf("%s to %s, %s killed when %s: ended %v later, resumed %d times after %v", source, target, test.victim, test.step, time.Since(begun), tries, broken)
}

func (w *world) region(role, source, target string) string {
	for _, name := range allRegions {
		if role == "source" && name == source || role == "target" && name == target || role == "bystander" && name != source && name != target {
			return name
		}
	}
	panic(role)
}

// livesIn waits until all regions say that a namespace lives in one, and is at rest.
func (w *world) livesIn(namespace, home string) {
	w.t.Helper()
	for name, service := range w.service {
		within(w.t, healedWithin, name+" knows that "+namespace+" lives in "+home, func() error {
			known, err := placementsOf(w.t, service)
			p := known[namespace]
			if err == nil && (p.GetRule() != "fixed "+home || p.GetMovePhase() != pb.MovePhase_MOVE_PHASE_UNSPECIFIED) {
				err = fmt.Errorf("it is placed by %v", p)
			}
			return err
		})
	}
}

// A move that waits for a holder can be given up. Meanwhile nothing is granted, repeats are
// answered, and the holder may end.
func TestAMoveIsAbandoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: map[string]string{"moving": "fixed eu", "*": "fixed eu"}})
	w.create("eu", "moving")
	w.placed("moving")
	ctx := t.Context()
	held, ended := w.fresh("moving"), w.fresh("moving")
	outcome := &store.Outcome{Body: []byte("charged")}
	var fences []int64
	for _, key := range []store.Key{held, ended} {
		got, _, err := w.claim(w.bare["ap"], key, "a")
		if err != nil || got.Granted == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		fences = append(fences, got.Granted.Fence)
	}
	if _, err := w.bare["us"].Complete(ctx, store.CompleteRequest{Key: ended, AttemptID: "a", Fence: fences[1], Outcome: outcome}); err != nil {
		t.Fatal(err)
	}
	m := w.mover("moving", "us", false)
	if !m.reaches("waiting", moveWithin) {
		t.Fatalf("the move did not begin: %s", m.log())
	}
	for _, from := range allRegions {
		w.frozen(from, held, ended, fences[0])
	}
	m.kill()
	if err := w.mover("moving", "us", true).ends(moveWithin); err != nil {
		t.Fatalf("abandon: %v", err)
	}
	w.livesIn("moving", "eu")
	for _, from := range allRegions {
		w.grants(healedWithin, w.bare[from], from, "moving")
	}
	if _, err := w.bare["us"].Complete(ctx, store.CompleteRequest{Key: held, AttemptID: "a", Fence: fences[0], Outcome: outcome}); err != nil {
		t.Errorf("the holder ends after the move was abandoned: %v", err)
	}
}

// frozen checks what callers in one region are told while a namespace does not grant.
func (w *world) frozen(from string, held, ended store.Key, fence int64) {
	w.t.Helper()
	ctx, s := w.t.Context(), w.bare[from]
	if got, _, err := w.claim(s, w.fresh("moving"), "b"); !errors.Is(err, store.ErrNamespaceMoving) || !strings.Contains(err.Error(), "moving") {
		w.t.Errorf("a new claim from %s: %+v, %v; want that it is unavailable, and that the namespace moves", from, got, err)
	}
	if got, _, err := w.claim(s, ended, "b"); err != nil || got.Completed == nil || string(got.Completed.Outcome.Body) != "charged" {
		w.t.Errorf("a repeat from %s: %+v, %v; want completed", from, got, err)
	}
	if got, _, err := w.claim(s, held, "a"); err != nil || got.Granted == nil || got.Granted.Fence != fence {
		w.t.Errorf("the holder claims again from %s: %+v, %v; want fence %d", from, got, err, fence)
	}
	if got, _, err := w.claim(s, held, "b"); err != nil || got.InProgress == nil {
		w.t.Errorf("a rival's claim from %s: %+v, %v; want in progress", from, got, err)
	}
	if got, err := s.Lookup(ctx, store.LookupRequest{Key: held}); err != nil || got.Fence != fence {
		w.t.Errorf("a lookup from %s: %+v, %v; want fence %d", from, got, err, fence)
	}
	if _, err := s.Renew(ctx, store.RenewRequest{Key: held, AttemptID: "a", Fence: fence}); err != nil {
		w.t.Errorf("the holder renews from %s: %v", from, err)
	}
}

// A move carries everything that is known of a key: what was completed, what lapsed unknown, the
// attempts that ended, and fences go on growing.
func TestAMoveCarriesAllThatIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: map[string]string{"moving": "fixed eu", "*": "fixed eu"}})
	w.create("eu", "moving")
	w.placed("moving")
	ctx, s := t.Context(), w.bare["ap"]
	outcome := &store.Outcome{Body: []byte("charged"), BodyType: "text/plain", Header: []store.MetadataEntry{{Name: "x", Value: []byte{0, 255}}}}
	keys, fences := map[string]store.Key{}, map[string]int64{}
	for _, name := range []string{"completed", "released", "unknown"} {
		keys[name] = w.fresh("moving")
		got, _, err := w.claim(s, keys[name], "a")
		if err != nil || got.Granted == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		fences[name] = got.Granted.Fence
	}
	_, errComplete := s.Complete(ctx, store.CompleteRequest{Key: keys["completed"], AttemptID: "a", Fence: fences["completed"], Outcome: outcome})
	_, errNone := s.Release(ctx, store.ReleaseRequest{Key: keys["released"], AttemptID: "a", Fence: fences["released"], Effect: store.EffectNone})
	_, errUnknown := s.Release(ctx, store.ReleaseRequest{Key: keys["unknown"], AttemptID: "a", Fence: fences["unknown"], Effect: store.EffectUnknown})
	if err := errors.Join(errComplete, errNone, errUnknown); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"us", "ap", "eu"} { // and home again
		if err := w.mover("moving", target, false).ends(moveWithin); err != nil {
			t.Fatalf("move to %s: %v", target, err)
		}
		w.livesIn("moving", target)
		got, _, err := w.claim(s, keys["completed"], "b")
		if err != nil || got.Completed == nil || got.Completed.Outcome.Digest() != outcome.Digest() || got.Completed.Fence != fences["completed"] {
			t.Errorf("in %s, completed: %+v, %v", target, got, err)
		}
		for _, name := range []string{"released", "unknown"} {
			if got, _, err := w.claim(s, keys[name], "a"); !errors.Is(err, store.ErrStaleAttempt) {
				t.Errorf("in %s, %s: the attempt that ended claims again and gets %+v, %v; want that it has ended", target, name, got, err)
			}
		}
	}
	for name, unsettled := range map[string]bool{"released": false, "unknown": true} {
		got, _, err := w.claim(s, keys[name], "b")
		g := got.Granted
		if err != nil || g == nil || g.Fence <= fences[name] || g.PreviousFence != fences[name] || g.AttemptNumber != 2 || g.Unsettled != unsettled {
			t.Fatalf("%s: %+v, %v; want granted as attempt 2 with a fence above %d, unsettled %t", name, g, err, fences[name], unsettled)
		}
		if _, err := s.Complete(ctx, store.CompleteRequest{Key: keys[name], AttemptID: "b", Fence: g.Fence, Outcome: outcome}); err != nil {
			t.Fatal(err)
		}
	}
	w.forgotten(keys["completed"])
}

// forgotten checks that a client that has learned an old place is told of the new one.
func (w *world) forgotten(key store.Key) {
	w.t.Helper()
	c := w.Client("us")
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	before, err := c.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "c"})
	if err != nil || before.Completed == nil {
		w.t.Fatalf("%+v, %v", before, err)
	}
	if err := w.mover("moving", "ap", false).ends(moveWithin); err != nil {
		w.t.Fatalf("move to ap: %v", err)
	}
	within(w.t, healedWithin, "a client that knows the old home goes to the new one", func() error {
		got, err := c.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "d"})
		switch {
		case err != nil || got.Completed == nil:
			w.t.Fatalf("%+v, %v; want completed", got, err)
		case got.Served.Home != "ap" || got.Served.Epoch <= before.Served.Epoch:
			w.t.Fatalf("served by %+v, want ap with an epoch above %d", got.Served, before.Served.Epoch)
		case got.Served.Forwarded:
			return errNotYet
		}
		return nil
	})
}
