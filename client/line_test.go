package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/store"
)

// leftWithin is how soon a caller on a silent line is answered by the other way.
const leftWithin = homePatience + pingPatience

// inEveryWay are operations on a key of us that go by a call or in a session.
func (w *world) inEveryWay() map[string]func(context.Context, store.Key) error {
	claim := func(ctx context.Context, k store.Key, wait time.Duration) error {
		_, err := w.client.Claim(ctx, store.ClaimRequest{Key: k, AttemptID: "a", Wait: wait})
		return err
	}
	complete := func(ctx context.Context, k store.Key, size int) error {
		_, err := w.client.Complete(ctx, store.CompleteRequest{Key: k, AttemptID: "a", Fence: 7, Outcome: &store.Outcome{Body: make([]byte, size)}})
		return err
	}
	return map[string]func(context.Context, store.Key) error{
		"a claim":            func(ctx context.Context, k store.Key) error { return claim(ctx, k, 0) },
		"a claim that waits": func(ctx context.Context, k store.Key) error { return claim(ctx, k, time.Minute) },
		"a claim with metadata": func(ctx context.Context, k store.Key) error {
			return claim(metadata.AppendToOutgoingContext(ctx, "trace", "7"), k, 0)
		},
		"a claim that its caller sends again": func(ctx context.Context, k store.Key) error { return claim(onItsOwn(ctx), k, 0) },
		"a renewal": func(ctx context.Context, k store.Key) error {
			_, err := w.client.Renew(ctx, store.RenewRequest{Key: k, AttemptID: "a", Fence: 7})
			return err
		},
		"a completion":       func(ctx context.Context, k store.Key) error { return complete(ctx, k, 0) },
		"a large completion": func(ctx context.Context, k store.Key) error { return complete(ctx, k, store.MaxOutcomeBytes/2) },
		"a release": func(ctx context.Context, k store.Key) error {
			_, err := w.client.Release(ctx, store.ReleaseRequest{Key: k, AttemptID: "a", Fence: 7, Effect: store.EffectNone})
			return err
		},
		"a lookup": func(ctx context.Context, k store.Key) error {
			_, err := w.client.Lookup(ctx, store.LookupRequest{Key: k})
			return err
		},
	}
}

const ways = 9

// all does every operation at once, and checks how long each takes.
func (w *world) all(what string, least, most time.Duration) {
	w.Helper()
	var callers sync.WaitGroup
	for name, do := range w.inEveryWay() {
		w.number++
		k := store.Key{Namespace: key.Namespace, ID: fmt.Sprint("order-", w.number), Entity: "us"}
		callers.Go(func() {
			begun := time.Now()
			err := do(w.Context(), k)
			if took := time.Since(begun); err != nil || took < least || took > most {
				w.Errorf("%s: %s took %v: %v; want from %v to %v", what, name, took, err, least, most)
			}
		})
	}
	callers.Wait()
}

// inSession has the client hold a session with us.
func (w *world) inSession() {
	w.Helper()
	w.learnt("us")
	w.claims("us", "us")
	w.take()
	if w.regions["us"].opened != 1 {
		w.Fatalf("us has %d sessions", w.regions["us"].opened)
	}
}

// What is on the way home when the line goes silent is sent again by the other way, and the line
// is made anew. So it is if the line takes nothing any more, as one does that is full.
func TestSilentLineIsLeft(t *testing.T) {
	for name, lost := range map[string]func(*world) map[string]bool{
		"silent": func(w *world) map[string]bool { return w.holed },
		"full":   func(w *world) map[string]bool { return w.stuck },
	} {
		t.Run(name, func(t *testing.T) {
			among(t, func(w *world) {
				w.inSession()
				w.with(func() { lost(w)["us"] = true })
				w.all("silent", leftWithin, leftWithin)
				w.were("silent", map[string]tally{"eu": {forwarded: ways}})
				w.all("then", 0, 0)
				w.were("then", map[string]tally{"eu": {forwarded: ways}})
				w.with(func() { lost(w)["us"] = false })
				for range 30 { // an attempt to connect may be under way, and the line is made when it is needed
					w.claims("us")
					time.Sleep(time.Second)
				}
				w.take()
				w.all("back", 0, 0)
				w.were("back", map[string]tally{"us": {own: ways}})
			})
		})
	}
}

// What the home has received already is sent again as the same attempt. A line falls silent at
// any time: a claim that has waited for long is no better proof that the home is there.
func TestSilentLineAndWhatTheHomeHas(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		among(t, func(w *world) {
			w.inSession()
			w.with(func() { w.regions["us"].hangs = true })
			begun := time.Now()
			answered := make(chan error)
			go func() {
				k := store.Key{Namespace: key.Namespace, ID: "order", Entity: "us"}
				got, err := w.client.Claim(w.Context(), store.ClaimRequest{Key: k, AttemptID: "a", Wait: wait})
				if later := time.Since(begun); err == nil && got.Granted.HeldFor != later {
					err = fmt.Errorf("held for %v, though it was sent %v ago", got.Granted.HeldFor, later)
				}
				answered <- err
			}()
			time.Sleep(10*time.Second + 123*time.Millisecond) // it lives, and is slow
			select {
			case err := <-answered:
				w.Fatalf("the claim ended: %v", err)
			default:
			}
			w.with(func() { w.holed["us"] = true })
			silent := time.Now()
			if err := <-answered; err != nil {
				w.Error(err)
			}
			if took := time.Since(silent); took > leftWithin {
				w.Errorf("answered after %v", took)
			}
			w.were("asked", map[string]tally{"us": {own: 1}, "eu": {forwarded: 1}})
			if got := w.attempts["order"]; !slices.Equal(got, []string{"a", "a"}) {
				w.Errorf("attempts %q", got)
			}
		})
	}
}

// All who are on the line are answered by the other way: that is no retry of a server that
// cannot keep up.
func TestSilentLineWithManyOnIt(t *testing.T) {
	among(t, func(w *world) {
		w.inSession()
		w.with(func() { w.holed["us"] = true })
		begun := time.Now()
		var callers sync.WaitGroup
		for range 500 {
			callers.Go(func() {
				err := w.claim(w.Context(), "us")
				if took := time.Since(begun); err != nil || took != leftWithin {
					w.Errorf("%v after %v", err, took)
				}
			})
		}
		callers.Wait()
		w.were("asked", map[string]tally{"eu": {forwarded: 500}})
	})
}

// Slow answers of a server that is there are waited for.
func TestSlowHomeIsNotLeft(t *testing.T) {
	among(t, func(w *world) {
		w.inSession()
		w.with(func() { w.regions["us"].slow = 20 * time.Second })
		w.all("slow", 20*time.Second, 2*time.Minute) // a session's messages are answered one by one here
		w.with(func() { w.regions["us"].slow = 0 })
		w.all("quick", 0, 0)
		w.were("asked", map[string]tally{"us": {own: 2 * ways}})
	})
}

// Where a home is there and answers no operation, those who come after one that gave up go the
// other way.
func TestHomeThatOnlyAnswersPings(t *testing.T) {
	among(t, func(w *world) {
		w.inSession()
		w.with(func() { w.regions["us"].hangs = true })
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		if err := w.claim(ctx, "us"); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		w.take()
		w.claims("us")
		w.were("then", map[string]tally{"eu": {forwarded: 1}})
	})
}

// Callers who never wait for long find out together that the line is silent.
func TestSilentLineAndHurriedCallers(t *testing.T) {
	among(t, func(w *world) {
		w.inSession()
		w.with(func() { w.holed["us"] = true })
		failed := 0
		for range 20 {
			ctx, cancel := context.WithTimeout(w.Context(), 200*time.Millisecond)
			if w.claim(ctx, "us") != nil {
				failed++
			}
			cancel()
		}
		if failed > 7 {
			w.Errorf("%d of 20 failed", failed)
		}
	})
}

// There is one ping at a time however many wait, and none, nor a goroutine, if nobody does.
func TestPings(t *testing.T) {
	among(t, func(w *world) {
		w.inSession()
		for range 100 {
			w.claims("us")
			time.Sleep(100 * time.Millisecond)
		}
		if n := w.pings["us"]; n != 0 {
			w.Errorf("%d pings to a home that answers", n)
		}
		w.with(func() { w.regions["us"].slow = 10*time.Second + 1 })
		begun := time.Now()
		var callers sync.WaitGroup
		for range 500 {
			callers.Go(func() {
				if err := w.claim(w.Context(), "us"); err != nil {
					w.Error(err)
				}
			})
		}
		callers.Wait()
		pings, took := w.pings["us"], time.Since(begun)
		if most := int(took / homePatience); pings < most-1 || pings > most {
			w.Errorf("%d pings while 500 callers waited for %v", pings, took)
		}
		time.Sleep(homePatience)
		synctest.Wait()
		for address, h := range w.client.routes.homes {
			if l := h.line.Load(); l.watched || l.inFlight != 0 {
				w.Errorf("%s is watched, %d are in flight", address, l.inFlight)
			}
		}
		time.Sleep(time.Hour)
		if n := w.pings["us"]; n != pings {
			w.Errorf("%d pings when idle", n-pings)
		}
		if n := w.pings["eu"] + w.pings["ap"]; n != 0 {
			w.Errorf("%d pings to others", n)
		}
	})
}

// Close ends what is on a silent line, also while that is being left.
func TestCloseOnASilentLine(t *testing.T) {
	for _, after := range []time.Duration{0, homePatience, leftWithin - 1, leftWithin, leftWithin + 1} {
		among(t, func(w *world) {
			w.inSession()
			w.with(func() { w.holed["us"], w.holed["eu"] = true, true })
			ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
			defer cancel()
			done := make(chan error)
			go func() { done <- w.claim(ctx, "us") }()
			time.Sleep(after)
			w.closes()
			if err := <-done; !errors.Is(err, store.ErrUnavailable) {
				w.Errorf("closed after %v: %v", after, err)
			}
		})
	}
}

func TestWatchingAllocatesNothing(t *testing.T) {
	l := &line{home: &home{}, life: t.Context(), watched: true}
	if n := testing.AllocsPerRun(1000, func() {
		l.begins(1)
		l.ended(2, true)
	}); n != 0 {
		t.Errorf("%v allocations for an operation", n)
	}
}
