package storetest

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

func beginning(r *rig, until time.Time) store.BegunRecovery {
	r.Helper()
	begun, err := r.BeginRecovery(r.ctx, store.BeginRecoveryRequest{CompleteUntil: until, Actor: "omar", Reason: "restored"})
	if err != nil {
		r.Fatalf("BeginRecovery: %v", err)
	}
	if begun.InForce.Before(begun.Now) || begun.Now.Before(until) {
		r.Fatalf("BeginRecovery at %v is in force from %v", begun.Now, begun.InForce)
	}
	r.Clock.Advance(begun.InForce.Sub(begun.Now) + time.Microsecond)
	return begun
}

// contractBeginRecovery: a floor stands in every namespace, and in those that are created
// later, however settings are changed, until it is lifted there.
func contractBeginRecovery(r *rig) {
	r.Clock.Advance(time.Hour)
	until := r.Clock.Wall().UTC().Add(-time.Minute)
	held := claim(takeoverKey, "known")
	held.Lease = time.Minute // longer than it takes to be in force
	known := holder{"known", r.do(held, "granted").Fence}
	begun := beginning(r, until)
	list, err := r.ListNamespaces(r.ctx)
	if err != nil {
		r.Fatalf("ListNamespaces: %v", err)
	}
	equal(r, "namespaces that were answered", len(begun.Namespaces), len(list))
	step := store.RecoveryStep{At: begun.Now, Kind: store.RecoveryBegun, Floor: begun.Now, CompleteUntil: until, Actor: "omar", Reason: "restored"}
	for i, ns := range list {
		equal(r, "answered and stored", fmt.Sprintf("%+v", begun.Namespaces[i]), fmt.Sprintf("%+v", ns))
		equal(r, ns.Name+": floor", ns.RecoveryFloor, begun.Now)
		want := step
		want.ForNew = ns.Name == store.DefaultNamespace
		equal(r, ns.Name+": steps", fmt.Sprintf("%+v", ns.Recovery), fmt.Sprintf("%+v", []store.RecoveryStep{want}))
	}
	r.do(claim(takeoverKey, "known"), "granted")
	r.do(complete(takeoverKey, known, done), "recorded")
	key := store.Key{Namespace: store.DefaultNamespace, ID: "forgotten"}
	r.refuse(claim(key, "a"), store.ErrUnknownHistory)

	created, err := r.CreateNamespace(r.ctx, store.Namespace{Name: "created-again"})
	if err != nil {
		r.Fatalf("CreateNamespace: %v", err)
	}
	equal(r, "floor of one that is created later", created.RecoveryFloor, begun.Now)
	equal(r, "its steps", fmt.Sprintf("%+v", created.Recovery), fmt.Sprintf("%+v", []store.RecoveryStep{step}))
	again, err := r.CreateNamespace(r.ctx, store.Namespace{Name: "created-again"})
	if err != nil || !again.RecoveryFloor.Equal(begun.Now) {
		r.Fatalf("created once more: %+v, %v", again, err)
	}
	r.refuse(claim(store.Key{Namespace: "created-again", ID: "k"}, "a"), store.ErrUnknownHistory)

	// A whole set of settings without a floor does not lift it.
	updated, err := r.UpdateNamespace(r.ctx, store.Namespace{Name: store.DefaultNamespace, Retention: 12 * time.Hour})
	if err != nil {
		r.Fatalf("UpdateNamespace: %v", err)
	}
	equal(r, "floor after an update without one", updated.RecoveryFloor, begun.Now)
	equal(r, "steps after an update", len(updated.Recovery), 1)
	r.refuse(claim(key, "a"), store.ErrUnknownHistory)
	if _, err := r.BeginRecovery(r.ctx, store.BeginRecoveryRequest{CompleteUntil: r.Clock.Wall().Add(time.Hour), Reason: "r"}); reasonOf(err) != "INVALID_ARGUMENT" {
		r.Fatalf("a recovery from what is to come: %v", err)
	}
}

// contractBeginRecoveryOfOne: of no other namespace anything is changed.
func contractBeginRecoveryOfOne(r *rig) {
	r.Clock.Advance(time.Hour)
	for _, name := range []string{hourTakeover, store.DefaultNamespace} {
		req := store.BeginRecoveryRequest{Namespace: name, CompleteUntil: store.KnowsNothing, Actor: "omar", Reason: "lost"}
		before := map[string]string{}
		list, err := r.ListNamespaces(r.ctx)
		if err != nil {
			r.Fatalf("ListNamespaces: %v", err)
		}
		for _, ns := range list {
			before[ns.Name] = fmt.Sprintf("%+v", ns)
		}
		for range 2 { // the second one is that of a start after a crash
			begun, err := r.BeginRecovery(r.ctx, req)
			if err != nil || len(begun.Namespaces) != 1 {
				r.Fatalf("BeginRecovery of %s: %+v, %v", name, begun, err)
			}
			r.Clock.Advance(begun.InForce.Sub(begun.Now))
			r.reopen()
			if list, err = r.ListNamespaces(r.ctx); err != nil {
				r.Fatalf("ListNamespaces: %v", err)
			}
			for _, ns := range list {
				if ns.Name != name {
					equal(r, "another namespace", fmt.Sprintf("%+v", ns), before[ns.Name])
					continue
				}
				step := store.RecoveryStep{At: begun.Now, Kind: store.RecoveryBegun, Floor: begun.Now, CompleteUntil: store.KnowsNothing, Actor: "omar", Reason: "lost"}
				equal(r, "floor", ns.RecoveryFloor, begun.Now)
				equal(r, "floor of those that are created", ns.FloorForNew, time.Time{})
				equal(r, "steps", fmt.Sprintf("%+v", ns.Recovery), fmt.Sprintf("%+v", []store.RecoveryStep{step}))
			}
		}
	}
	r.refuse(claim(store.Key{Namespace: store.DefaultNamespace, ID: "forgotten"}, "a"), store.ErrUnknownHistory)
	_, err := r.BeginRecovery(r.ctx, store.BeginRecoveryRequest{Namespace: "nobody", CompleteUntil: store.KnowsNothing, Reason: "r"})
	r.refusedAs("a recovery of no namespace", err, store.ErrNamespaceUnknown)
	_, err = r.BeginRecovery(r.ctx, store.BeginRecoveryRequest{Namespace: "No Name", CompleteUntil: store.KnowsNothing, Reason: "r"})
	r.refusedAs("a recovery of a bad name", err, store.ErrInvalidArgument)
}

// contractLiftRecovery: a floor is lifted where it is said, once, and who did so is kept.
func contractLiftRecovery(r *rig) {
	r.Clock.Advance(time.Hour)
	begun := beginning(r, r.Clock.Wall().UTC())
	lift := func(req store.LiftRecoveryRequest) store.Namespace {
		req.LeasesEnded, req.Actor, req.Reason = true, "omar", "all settled"
		ns, err := r.LiftRecovery(r.ctx, req)
		if err != nil {
			r.Fatalf("LiftRecovery: %v", err)
		}
		return ns
	}
	for range 2 { // the second time does nothing
		ns := lift(store.LiftRecoveryRequest{Namespace: hourTakeover})
		equal(r, "floor", ns.RecoveryFloor.IsZero(), true)
		equal(r, "steps", len(ns.Recovery), 2)
		last := ns.Recovery[1]
		equal(r, "kind", last.Kind, store.RecoveryLifted)
		equal(r, "what was lifted", last.Floor, begun.Now)
		equal(r, "who and why", last.Actor+": "+last.Reason, "omar: all settled")
	}
	r.upkeep()
	r.do(claim(takeoverKey, "a"), "granted")
	r.refuse(claim(holdKey, "a"), store.ErrUnknownHistory)

	def := lift(store.LiftRecoveryRequest{ForNew: true})
	equal(r, "default's own floor", def.RecoveryFloor, begun.Now)
	created, err := r.CreateNamespace(r.ctx, store.Namespace{Name: "new"})
	if err != nil || !created.RecoveryFloor.IsZero() {
		r.Fatalf("created after the floor for new ones was lifted: %+v, %v", created, err)
	}
	for _, req := range []store.LiftRecoveryRequest{
		{Namespace: hourHold}, {Namespace: hourHold, ForNew: true, Reason: "r"}, {Reason: "r"},
	} {
		if _, err := r.LiftRecovery(r.ctx, req); reasonOf(err) != "INVALID_ARGUMENT" {
			r.Fatalf("LiftRecovery %+v: %v", req, err)
		}
	}
	if _, err := r.LiftRecovery(r.ctx, store.LiftRecoveryRequest{Namespace: "nobody", Reason: "r"}); reasonOf(err) != "NAMESPACE_UNKNOWN" {
		r.Fatalf("LiftRecovery in no namespace: %v", err)
	}
	for i := range store.MaxRecoverySteps {
		r.Clock.Advance(time.Second)
		beginning(r, r.Clock.Wall().UTC())
		lift(store.LiftRecoveryRequest{Namespace: hourHold})
		ns, err := r.GetNamespace(r.ctx, hourHold)
		if err != nil {
			r.Fatalf("GetNamespace: %v", err)
		}
		equal(r, "steps kept", len(ns.Recovery), min(1+2*(i+1), store.MaxRecoverySteps))
	}
}

// contractLiftIsConfirmed: what a lift may lead to is confirmed, whoever asks for it, and a floor is
// lifted only where one stands.
func contractLiftIsConfirmed(r *rig) {
	lift := func(req store.LiftRecoveryRequest) error {
		r.Helper()
		req.Actor, req.Reason = "omar", "settled"
		_, err := r.LiftRecovery(r.ctx, req)
		r.reopen()
		return err
	}
	both := []store.LiftRecoveryRequest{{Namespace: store.DefaultNamespace}, {ForNew: true}}
	for _, req := range both {
		r.refusedAs("a lift of no floor", lift(req), store.ErrNoFloor)
	}
	r.Clock.Advance(time.Hour)
	beginning(r, store.KnowsNothing)
	beginning(r, r.Clock.Wall().UTC())
	r.Clock.Advance(store.MaxLease)
	created, err := r.CreateNamespace(r.ctx, store.Namespace{Name: "created-again"})
	if err != nil || !created.ForgotAll() {
		r.Fatalf("one that is created later: %+v, %v", created, err)
	}
	for _, req := range append(both, store.LiftRecoveryRequest{Namespace: created.Name}) {
		r.refusedAs("a lift where nothing is known", lift(req), store.ErrNotConfirmed)
		if !req.ForNew {
			r.refuse(claim(store.Key{Namespace: req.Namespace, ID: "forgotten"}, "a"), store.ErrUnknownHistory)
		}
		req.NothingKnown = true
		if err := lift(req); err != nil {
			r.Fatalf("%+v: %v", req, err)
		}
		if err := lift(req); err != nil {
			r.Fatalf("%+v, sent again: %v", req, err)
		}
		req.Actor, req.Reason = "omar", "settled twice"
		_, err := r.LiftRecovery(r.ctx, req)
		r.refusedAs("another lift", err, store.ErrNoFloor)
	}
	r.do(claim(store.Key{Namespace: created.Name, ID: "forgotten"}, "a"), "granted")
}

// contractFloorForNewAges: what a lost namespace of the same name had forgotten has expired by then.
func contractFloorForNewAges(r *rig) {
	r.Clock.Advance(time.Hour)
	beginning(r, r.Clock.Wall().UTC())
	const longest = 35*24*time.Hour + 15*time.Minute
	r.Clock.Advance(longest)
	created, err := r.CreateNamespace(r.ctx, store.Namespace{Name: "new"})
	if err != nil || !created.RecoveryFloor.IsZero() || len(created.Recovery) != 0 {
		r.Fatalf("created long after a recovery: %+v, %v", created, err)
	}
}
