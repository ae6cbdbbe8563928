package store_test

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// What a floor is for is told by what was begun since it was lifted last; of the default namespace,
// also the floor of those to come is lifted.
func TestForgotAll(t *testing.T) {
	ns := store.Namespace{Name: store.DefaultNamespace}
	check := func(what string, want bool) {
		t.Helper()
		if got := ns.ForgotAll(); got != want {
			t.Errorf("%s: %v, want %v: %+v", what, got, want, ns)
		}
	}
	check("no floor", false)
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(0), Reason: "a backup"}, at(1))
	check("a backup is known", false)
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Namespace: ns.Name, Reason: "moved"}, at(2))
	check("it was moved here since", true)
	if !ns.FloorForNew.Equal(at(1)) {
		t.Errorf("the floor of those to come is %v, and what was begun was about one", ns.FloorForNew)
	}
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(2), Reason: "another backup"}, at(3))
	check("and a later backup is known", true)
	ns = lifted(t, ns, store.LiftRecoveryRequest{ForNew: true}, at(10000))
	check("the floor of those to come is lifted", true)
	ns = lifted(t, ns, store.LiftRecoveryRequest{Namespace: ns.Name, NothingKnown: true}, at(10001))
	check("the floor is lifted", false)
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(10002), Reason: "a third backup"}, at(10003))
	check("a backup from after that", false)
}

func forgot(t *testing.T, ns store.Namespace, want bool) {
	t.Helper()
	if got := ns.ForgotAll(); got != want {
		t.Errorf("it has forgotten all: %v, want %v: %+v", got, want, ns)
	}
}

func at(s int) time.Time { return storetest.Start.Add(time.Duration(s) * time.Second) }

// Where a store joins other regions the namespace's own floor rises alone, and an update raises it too:
// which one was lifted is not told by their times.
func TestForgotAllThoughTheFloorOfThoseToComeIsLifted(t *testing.T) {
	ns := store.Namespace{Name: store.DefaultNamespace}
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(0), Reason: "a backup"}, at(1))
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Namespace: ns.Name, Reason: "moved"}, at(2))
	ns = lifted(t, ns, store.LiftRecoveryRequest{ForNew: true}, at(10000))
	forgot(t, ns, true)

	ns = lifted(t, ns, store.LiftRecoveryRequest{Namespace: ns.Name, NothingKnown: true}, at(10001))
	ns.RecoveryFloor = at(2) // as an update sets it
	forgot(t, ns, false)
}

// The floor of those to come rises with what began it, not with what is of the default namespace alone.
func TestTheFloorOfThoseToComeRises(t *testing.T) {
	ns := store.Namespace{Name: store.DefaultNamespace}
	backup := store.BeginRecoveryRequest{CompleteUntil: at(0), Reason: "a backup"}
	ns = ns.BeginRecovery(backup, at(1))
	backup.Namespace = ns.Name
	ns = ns.BeginRecovery(backup, at(2))
	if !ns.FloorForNew.Equal(at(2)) || len(ns.Recovery) != 1 {
		t.Errorf("begun again: %+v", ns)
	}
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Namespace: ns.Name, Reason: "moved"}, at(3))
	if !ns.FloorForNew.Equal(at(2)) || len(ns.Recovery) != 2 {
		t.Errorf("begun for one: %+v", ns)
	}
	ns = ns.BeginRecovery(backup, at(4))
	if !ns.FloorForNew.Equal(at(4)) || !ns.RecoveryFloor.Equal(at(4)) || len(ns.Recovery) != 2 {
		t.Errorf("and again the first: %+v", ns)
	}
}

// One that is created is told all that the standing floor of those to come is for.
func TestOneThatIsCreatedForgotAll(t *testing.T) {
	def := store.Namespace{Name: store.DefaultNamespace}
	create := func() store.Namespace { return store.Namespace{Name: "pay"}.Create(&def, at(20000)) }
	def = def.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "another store"}, at(1))
	def = def.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(2), Reason: "its backup"}, at(3))
	forgot(t, create(), true)
	if ns := create(); len(ns.Recovery) != 2 || ns.Recovery[0].ForNew || !ns.RecoveryFloor.Equal(at(3)) {
		t.Errorf("created: %+v", ns)
	}
	def = lifted(t, def, store.LiftRecoveryRequest{Namespace: def.Name, NothingKnown: true}, at(10000))
	forgot(t, def, false)
	forgot(t, create(), true)
	def = lifted(t, def, store.LiftRecoveryRequest{ForNew: true, NothingKnown: true}, at(10001))
	def = def.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(10001), Reason: "another backup"}, at(10002))
	forgot(t, create(), false)
	def = def.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Namespace: def.Name, Reason: "moved"}, at(10003))
	forgot(t, def, true)
	forgot(t, create(), false)
}

// However much is done, what says that nothing is known is kept until it is settled, and what was
// settled stays so.
func TestForgotAllIsNotForgotten(t *testing.T) {
	ns := store.Namespace{Name: store.DefaultNamespace}
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "another store"}, at(1))
	ns = lifted(t, ns, store.LiftRecoveryRequest{Namespace: ns.Name, NothingKnown: true}, at(10000))
	for i := range 3 * store.MaxRecoverySteps {
		ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(10000 + i), Namespace: ns.Name, Reason: "a backup"}, at(10001+i))
		forgot(t, ns, false)
		if created := (store.Namespace{Name: "pay"}).Create(&ns, at(20000)); len(ns.Recovery) > store.MaxRecoverySteps || !created.ForgotAll() {
			t.Fatalf("after %d more: %+v", i, ns)
		}
	}
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Namespace: ns.Name, Reason: "moved"}, at(15000))
	for i := range 3 * store.MaxRecoverySteps {
		ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(15000 + i), Reason: "a backup"}, at(15001+i))
		forgot(t, ns, true)
	}
}

func lifted(t *testing.T, ns store.Namespace, req store.LiftRecoveryRequest, now time.Time) store.Namespace {
	t.Helper()
	req.Reason = "settled"
	next, err := ns.LiftRecovery(req, now)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// A floor that was lifted here while the keys lived elsewhere comes back with a move: so does what it is
// for. Once the keys are here, it is this store that lifts it: then it stays lifted, however often the same
// is taken; what the old home has begun since is news.
func TestForgotAllComesBackWithAMove(t *testing.T) {
	there := store.Namespace{Name: "pay"}.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "r"}, at(1))
	here := liftedAll(t, there, at(10000))
	here = take(t, sealed(t, here, 1, "here"), there)
	forgot(t, here, false)
	here = flipped(t, here)
	forgot(t, here, true)
	if len(here.Recovery) != 3 || !here.RecoveryFloor.Equal(at(1)) {
		t.Errorf("%+v", here)
	}
	here = take(t, here, there)
	here = liftedAll(t, here, at(10001))
	if again := take(t, here, there); !again.RecoveryFloor.IsZero() || len(again.Recovery) != len(here.Recovery) {
		t.Errorf("lifted here, it stands again: %+v", again)
	}
	there = there.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(2), Reason: "restored"}, at(10002))
	here = take(t, here, there)
	forgot(t, here, false)
	if !here.RecoveryFloor.Equal(at(10002)) {
		t.Errorf("what has begun since: %+v", here)
	}
}

// What was lifted where the keys lived meanwhile stands no more where they come back to, unless more was
// begun there.
func TestAFloorThatWasLiftedElsewhereIsLiftedWhereTheKeysComeBack(t *testing.T) {
	for name, test := range map[string]struct {
		change func(here, there *store.Namespace)
		stands time.Time
	}{
		"all was lifted": {func(_, there *store.Namespace) { *there = liftedAll(t, *there, at(10000)) }, time.Time{}},
		"nothing was":    {func(_, _ *store.Namespace) {}, at(3)},
		"restored here since": {func(here, there *store.Namespace) {
			*there = liftedAll(t, *there, at(10000))
			*here = here.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(4), Reason: "restored"}, at(5))
		}, at(5)},
		"and again to the same backup": {func(here, there *store.Namespace) {
			*there = liftedAll(t, *there, at(10000))
			*here = here.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(2), Reason: "restored"}, at(5))
		}, at(5)},
		"raised here since": {func(here, there *store.Namespace) {
			*there = liftedAll(t, *there, at(10000))
			here.RecoveryFloor = at(5)
		}, at(5)},
		"restored there since": {func(_, there *store.Namespace) {
			*there = liftedAll(t, *there, at(10000))
			*there = there.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(10001), Reason: "restored"}, at(10002))
		}, at(10002)},
	} {
		t.Run(name, func(t *testing.T) {
			here := store.Namespace{Name: "pay"}.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "new"}, at(1))
			here = here.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(2), Reason: "restored"}, at(3))
			there := flipped(t, take(t, sealed(t, store.Namespace{Name: "pay"}, 1, "there"), here))
			test.change(&here, &there)
			here = sealed(t, here, 2, "here")
			for range 2 {
				here = take(t, here, there)
			}
			here = take(t, flipped(t, here), there)
			if !here.RecoveryFloor.Equal(test.stands) {
				t.Errorf("the floor is %v, want %v: %+v", here.RecoveryFloor, test.stands, here.Recovery)
			}
			forgot(t, here, name == "nothing was" || !test.stands.IsZero() && name != "restored there since")
			lifts := 0
			for _, step := range here.Recovery {
				if step.Kind == store.RecoveryLifted {
					lifts++
				}
			}
			if want := test.stands.IsZero() || name == "restored there since"; want != (lifts == 1) {
				t.Errorf("who lifted it is not told: %+v", here.Recovery)
			}
		})
	}
}

// What was noted for one move stands after that one alone, not after one elsewhere of which the store hears
// next because it has missed that its own was given up.
func TestWhatWasNotedStandsOnlyOnceTheKeysAreHere(t *testing.T) {
	there := store.Namespace{Name: "pay"}.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "r"}, at(1))
	here := take(t, sealed(t, store.Namespace{Name: "pay"}, 1, "here"), there)
	p := here.Placement
	here, err := here.Place(store.Placement{Epoch: p.Epoch + 1, Revision: p.Revision + 7, Rule: "fixed elsewhere"})
	if err != nil || !here.RecoveryFloor.IsZero() || len(here.Recovery) != 0 {
		t.Errorf("%+v, %v", here, err)
	}
}

func liftedAll(t *testing.T, ns store.Namespace, now time.Time) store.Namespace {
	t.Helper()
	return lifted(t, ns, store.LiftRecoveryRequest{Namespace: ns.Name, NothingKnown: true, LeasesEnded: true, Actor: "omar"}, now)
}

func sealed(t *testing.T, ns store.Namespace, epoch int64, to string) store.Namespace {
	t.Helper()
	ns, err := ns.Place(store.Placement{Epoch: epoch, Revision: 10 * epoch, Rule: "spread here there elsewhere", Move: store.Move{To: to, Phase: store.MoveSealed}})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func flipped(t *testing.T, ns store.Namespace) store.Namespace {
	t.Helper()
	p := ns.Placement
	p.Epoch, p.Revision, p.Rule, p.Move.Phase = p.Epoch+1, p.Revision+1, "fixed "+p.Move.To, store.MoveFlipped
	ns, err := ns.Place(p)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func take(t *testing.T, ns, from store.Namespace) store.Namespace {
	t.Helper()
	ns, err := ns.TakeHistory(ns.Placement.Revision, from)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
