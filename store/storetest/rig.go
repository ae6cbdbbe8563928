package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/idemd/idemd/store"
)

// A check is one named property of a backend. It makes its own fresh instance.
type check struct {
	name string
	run  func(t testing.TB, factory Factory)
}

// on lets a check that needs a single fresh rig be written as a function of it.
func on(run func(r *rig)) func(testing.TB, Factory) {
	return func(t testing.TB, factory Factory) { run(newRig(t, factory)) }
}

// rig is a fresh instance with the namespaces of [machineSpaces] and short words for
// what checks do all the time.
type rig struct {
	testing.TB
	*Instance
	ctx context.Context
	// placed is where [rig.place] has placed namespaces.
	placed map[string]store.Placement
}

func newRig(t testing.TB, factory Factory) *rig {
	t.Helper()
	r := &rig{TB: t, Instance: factory(t), ctx: t.Context(), placed: map[string]store.Placement{}}
	for name, ns := range machineSpaces() {
		if name != store.DefaultNamespace {
			r.createNamespace(ns.namespace(name))
		}
	}
	return r
}

func (r *rig) createNamespace(ns store.Namespace) store.Namespace {
	r.Helper()
	created, err := r.CreateNamespace(r.ctx, ns)
	if err != nil {
		r.Fatalf("CreateNamespace %q: %v", ns.Name, err)
	}
	return created
}

func (r *rig) updateNamespace(ns store.Namespace) {
	r.Helper()
	if _, err := r.UpdateNamespace(r.ctx, ns); err != nil {
		r.Fatalf("UpdateNamespace %q: %v", ns.Name, err)
	}
}

// The keys of most checks, in a namespace that allows takeovers and one that holds.
var (
	takeoverKey = store.Key{Namespace: hourTakeover, Scope: "s", ID: "k", Entity: "e"}
	holdKey     = store.Key{Namespace: hourHold, Scope: "s", ID: "k", Entity: "e"}
)

var (
	fingerprintF = store.Fingerprint{Version: 1, Digest: "f"}
	fingerprintG = store.Fingerprint{Version: 1, Digest: "g"}
	done         = &store.Outcome{Body: []byte("done"), BodyType: "t"}
	other        = &store.Outcome{Body: []byte("other"), BodyType: "t"}
)

// claim, renew, complete, release, lookup and inspect make requests.
func claim(key store.Key, attempt string) call {
	return call{Kind: opClaim, Key: key, AttemptID: attempt, Fingerprint: fingerprintF}
}

func renew(key store.Key, h holder) call {
	return call{Kind: opRenew, Key: key, AttemptID: h.attempt, Fence: h.fence}
}

func complete(key store.Key, h holder, outcome *store.Outcome) call {
	return call{Kind: opComplete, Key: key, AttemptID: h.attempt, Fence: h.fence, Outcome: outcome}
}

func release(key store.Key, h holder, effect store.Effect) call {
	return call{Kind: opRelease, Key: key, AttemptID: h.attempt, Fence: h.fence, Effect: effect}
}

func lookup(key store.Key) call {
	return call{Kind: opLookup, Key: key, Fingerprint: fingerprintF}
}

func inspect(key store.Key) call { return call{Kind: opInspect, Key: key} }

func resolve(key store.Key, outcome *store.Outcome) call {
	return call{Kind: opResolve, Key: key, Outcome: outcome, Actor: "operator", Reason: "because"}
}

func force(key store.Key) call {
	return call{Kind: opForce, Key: key, Actor: "operator", Reason: "because"}
}

// send performs c, by the epoch in force unless c has one.
func (r *rig) send(c call) reply {
	if c.Epoch == 0 {
		c.Epoch = r.placed[c.Key.Namespace].Epoch
	}
	return c.perform(r.ctx, r.Backend)
}

// do performs c and fails the test unless the answer is of that kind.
func (r *rig) do(c call, kind string) reply {
	r.Helper()
	got := r.send(c)
	if got.Kind != kind {
		r.Fatalf("%s of %q by %q: want %s, got %s %v", c.Kind, c.Key.ID, c.AttemptID, kind, got.Kind, got.Refusal)
	}
	return got
}

// refuse performs c and fails the test unless it is refused with that sentinel.
func (r *rig) refuse(c call, sentinel error) {
	r.Helper()
	got := r.send(c)
	if !errors.Is(got.Refusal, sentinel) {
		r.Fatalf("%s of %q by %q: want %q, got %s %v", c.Kind, c.Key.ID, c.AttemptID, sentinel, got.Kind, got.Refusal)
	}
}

// grant claims the key with the default lease and returns the holder.
func (r *rig) grant(key store.Key, attempt string) holder {
	r.Helper()
	return holder{attempt, r.do(claim(key, attempt), "granted").Fence}
}

// completed has a fresh attempt complete the key.
func (r *rig) completed(key store.Key, attempt string, outcome *store.Outcome) holder {
	r.Helper()
	h := r.grant(key, attempt)
	r.do(complete(key, h, outcome), "recorded")
	return h
}

// record is the key's record now.
func (r *rig) record(key store.Key) recordView {
	r.Helper()
	return r.do(inspect(key), "inspected").Record
}

// unchanged fails the test if the record is not what it was.
func (r *rig) unchanged(key store.Key, before recordView, after string) {
	r.Helper()
	if now := r.record(key); now != before {
		r.Fatalf("the record of %q changed after %s:%s", key.ID, after, difference(before, now))
	}
}

// equal fails the test unless got is want.
func equal[V comparable](r *rig, what string, got, want V) {
	r.Helper()
	if got != want {
		r.Fatalf("%s: want %v, got %v", what, shorten(want), shorten(got))
	}
}

// maintain runs maintenance, which may change nothing that anybody can see.
func (r *rig) maintain() {
	r.Helper()
	if _, err := r.Maintain(r.ctx); err != nil {
		r.Fatalf("Maintain: %v", err)
	}
}

// upkeep runs maintenance and, where the store keeps something, opens it anew.
func (r *rig) upkeep() {
	r.Helper()
	r.maintain()
	r.reopen()
}

func (r *rig) reopen() {
	if r.Reopen != nil {
		r.Reopen()
	}
}

// events returns the key's events of one kind, oldest first.
func (r *rig) events(key store.Key, kind store.EventKind) []store.Event {
	r.Helper()
	inspection, err := r.InspectRecord(r.ctx, key)
	if err != nil {
		r.Fatalf("InspectRecord of %q: %v", key.ID, err)
	}
	var found []store.Event
	for _, e := range inspection.Events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// now is the store's time.
func (r *rig) now(key store.Key) instant {
	r.Helper()
	return r.do(inspect(key), "inspected").Now
}

// lapse lets the lease of the key run out.
func (r *rig) lapse(key store.Key) {
	r.Helper()
	view := r.do(inspect(key), "inspected")
	r.Clock.Advance(view.Record.LeaseEnd.since(view.Now))
}

// attemptNames returns n different attempt ids.
func attemptNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("attempt-", i)
	}
	return names
}
