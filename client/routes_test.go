package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/store"
)

func TestGoesToTheHome(t *testing.T) {
	among(t, func(w *world) {
		w.claims("us")
		w.were("at first", map[string]tally{"eu": {forwarded: 1, topologies: 1}})
		w.claims("us")
		w.were("while it connects", map[string]tally{"eu": {forwarded: 1}})
		w.claims("ap")
		w.were("another region", map[string]tally{"eu": {forwarded: 1}})
		for range 100 {
			w.claims("eu", "us", "ap")
		}
		w.were("then", map[string]tally{"eu": {own: 100}, "us": {own: 100}, "ap": {own: 100}})
		for name, r := range w.regions {
			if r.opened != 1 {
				w.Errorf("%s has %d sessions", name, r.opened)
			}
		}
	})
}

// Every operation on a key goes to its home, and every answer says who gave it.
func TestEveryOperationGoesHome(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.claims("us", "us") // in a session from the second one on
		w.take()
		k := store.Key{Namespace: key.Namespace, ID: "order", Entity: "us"}
		for range 2 {
			claim, err1 := w.client.Claim(w.Context(), store.ClaimRequest{Key: k, AttemptID: "a"})
			renew, err2 := w.client.Renew(w.Context(), store.RenewRequest{Key: k, AttemptID: "a", Fence: 7})
			complete, err3 := w.client.Complete(w.Context(), store.CompleteRequest{Key: k, AttemptID: "a", Fence: 7, Outcome: &store.Outcome{}})
			release, err4 := w.client.Release(w.Context(), store.ReleaseRequest{Key: k, AttemptID: "a", Fence: 7, Effect: store.EffectNone})
			lookup, err5 := w.client.Lookup(w.Context(), store.LookupRequest{Key: k})
			if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
				w.Fatal(err)
			}
			for _, got := range []store.Served{claim.Served, renew.Served, complete.Served, release.Served, lookup.Served} {
				if want := (store.Served{Home: "us", Epoch: 1}); got != want {
					w.Errorf("served by %+v, want %+v", got, want)
				}
			}
		}
		w.were("asked", map[string]tally{"us": {own: 10}})
	})
}

func TestSpreadKeysGoHome(t *testing.T) {
	among(t, func(w *world) {
		w.with(func() { w.placement.Rule = "spread ap eu us" })
		w.learnt("a", "b", "c", "d", "e", "f", "g", "h")
		for i := range 300 {
			w.claims(string(rune('a'+i%26)) + string(rune('a'+i/26)))
		}
		got := w.take()
		for name := range w.regions {
			if got[name].own < 60 || got[name].forwarded != 0 {
				w.Errorf("%s: %+v of 300 claims", name, got[name])
			}
		}
	})
}

// A home that is down is asked through the dialled server, and by itself as soon as it is back.
func TestHomeIsDown(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.claims("us")
		w.down("us")
		w.take()
		for range 100 {
			w.claims("us")
			time.Sleep(time.Second)
		}
		w.were("down", map[string]tally{"eu": {forwarded: 100}})
		w.up("us")
		time.Sleep(8 * time.Second) // gRPC's pauses between attempts to connect
		w.claims("us")
		w.were("up", map[string]tally{"us": {own: 1}})
	})
}

// What was sent and broke off is sent again as the same attempt, by the other way, at once and
// however much it is.
func TestBreaksOffOnTheWayHome(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.with(func() { w.regions["us"].hangs = true })
		const callers = 500
		done := make(chan error)
		for range callers {
			go func() { done <- w.claim(metadata.AppendToOutgoingContext(w.Context(), "by", "a call"), "us") }()
		}
		synctest.Wait()
		w.were("hanging", map[string]tally{"us": {own: callers}})
		w.down("us")
		begun := time.Now()
		for range callers {
			if err := <-done; err != nil {
				w.Fatal(err)
			}
		}
		if took := time.Since(begun); took != 0 {
			w.Errorf("sent again after %v", took)
		}
		w.were("broken off", map[string]tally{"eu": {forwarded: callers}})
	})
}

// A line to the home on which everything vanishes costs those a second or two who are on it, and
// nobody who comes after that anything.
func TestLineHomeIsBlack(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.claims("us")
		w.with(func() { w.holed["us"] = true })
		w.take()
		begun := time.Now()
		w.claims("us")
		if took := time.Since(begun); took != leftWithin {
			w.Errorf("on the line, a caller took %v", took)
		}
		begun = time.Now()
		for range 10 {
			w.claims("us")
		}
		w.were("just after", map[string]tally{"eu": {forwarded: 11}})
		for range 300 {
			w.claims("us")
			time.Sleep(time.Second / 5)
		}
		if took := time.Since(begun); took != time.Minute {
			w.Errorf("just after, and each a fifth of a second later, callers took %v", took-time.Minute)
		}
		w.with(func() { w.holed["us"] = false })
		time.Sleep(time.Minute)
		w.take()
		w.claims("us")
		w.were("after the line is back", map[string]tally{"us": {own: 1}})
	})
}

// A server that refuses for a reason of its own is not the last word.
func TestHomeRefusesForAReasonOfItsOwn(t *testing.T) {
	for _, refusal := range []error{
		unimplemented, statusOfRefusal(store.ErrWrongRegion), statusOfRefusal(store.ErrUnauthenticated),
		statusOfRefusal(store.ErrPermissionDenied), statusOfRefusal(store.ErrNamespaceUnknown),
	} {
		among(t, func(w *world) {
			w.learnt("us")
			w.with(func() { w.regions["us"].refusal = refusal })
			w.claims("us")
			if got := w.take(); got["us"].refused == 0 || got["eu"].forwarded != 1 {
				w.Errorf("%v: first %v", refusal, got)
			}
			w.claims("us", "us")
			if got := w.take(); got["us"].refused != 0 || got["eu"].forwarded != 2 {
				w.Errorf("%v: then %v", refusal, got)
			}
			w.with(func() { w.regions["us"].refusal = nil })
			time.Sleep(firstHomePause)
			w.claims("us")
			w.were("allowed in again", map[string]tally{"us": {own: 1}})
		})
	}
}

// What is said of the key is final, wherever it was asked.
func TestRefusalsOfTheKeyStay(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.with(func() { w.regions["us"].refusal = statusOfRefusal(store.ErrKeyExpired) })
		for range 2 {
			if err := w.claim(w.Context(), "us"); !errors.Is(err, store.ErrKeyExpired) {
				w.Errorf("got %v", err)
			}
		}
		w.were("refused", map[string]tally{"us": {refused: 2}})
	})
}

// A region that the dialled server does not reach is asked by who does, also in a pause.
func TestServersDoNotReachTheHome(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.with(func() { w.regions["us"].refusal = unimplemented })
		for range 6 { // begins a pause, a longer one each time
			time.Sleep(maxHomePause)
			w.claims("us")
		}
		w.with(func() { w.regions["us"].refusal, w.cut = nil, "us" })
		w.take()
		w.claims("us")
		w.were("cut", map[string]tally{"eu": {refused: 1}, "us": {own: 1}})
	})
}

// A placement of yesterday costs one detour.
func TestNamespaceMoves(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("eu", "us", "ap")
		w.with(func() { w.placement.Epoch, w.placement.Revision, w.placement.Rule = 2, 5, "fixed ap" })
		w.claims("us")
		w.were("the first", map[string]tally{"eu": {topologies: 1}, "us": {forwarded: 1}})
		w.claims("us", "eu", "ap")
		w.were("the next", map[string]tally{"ap": {own: 3}})
		time.Sleep(2 * firstTopologyPause)
		w.with(func() { w.placement.Epoch, w.placement.Revision = 3, 6 }) // with the same rule
		w.claims("us")
		w.were("another epoch", map[string]tally{"ap": {own: 1}, "eu": {topologies: 1}})
	})
}

// The address that was dialled may be a balancer's, and lead elsewhere next time.
func TestDialledServerIsInAnotherRegion(t *testing.T) {
	among(t, func(w *world) {
		w.closes()
		w.with(func() { w.leads["127.0.0.9:7600"] = "eu" })
		w.dial("127.0.0.9:7600")
		w.learnt("eu", "us")
		w.with(func() { w.leads["127.0.0.9:7600"] = "us" })
		w.down("eu")
		w.up("eu")
		synctest.Wait()
		time.Sleep(8 * time.Second)
		w.take()
		w.claims("eu") // sent on: the dialled server is in us now
		w.claims("eu")
		w.were("moved", map[string]tally{"us": {forwarded: 2, topologies: 1}})
		w.claims("eu", "us")
		w.were("learnt", map[string]tally{"eu": {own: 1}, "us": {own: 1}})
	})
}

func TestThoseWhoDoNotRoute(t *testing.T) {
	twice := func(w *world) {
		w.claims("us")
		time.Sleep(time.Minute)
		w.claims("us", "ap")
		w.were("all", map[string]tally{"eu": {forwarded: 3}})
	}
	among(t, twice, NoRouting())
	among(t, func(w *world) {
		w.closes()
		conn, err := grpc.NewClient("127.0.0.2:7600", grpc.WithContextDialer(w.connect), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			w.Fatal(err)
		}
		defer conn.Close()
		w.client = New(conn)
		twice(w)
		w.closes()
		w.client.keys.sessions.running.Wait()
	})
}

// Close waits for nothing that hangs, and nothing is connected or asked afterwards.
func TestCloseWithOperationsAtHome(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.with(func() { w.regions["us"].hangs = true })
		done := make(chan error)
		go func() { done <- w.claim(w.Context(), "us") }()
		synctest.Wait()
		w.take()
		if err := w.client.Close(); err != nil {
			w.Error(err)
		}
		if err := <-done; err == nil {
			w.Error("the operation did not break off")
		}
		w.were("closing", map[string]tally{})
		if err := w.claim(w.Context(), "us"); err == nil {
			w.Error("a closed client claims")
		}
		w.were("closed", map[string]tally{})
	})
}
