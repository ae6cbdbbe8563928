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
	at := func(s int) time.Time { return storetest.Start.Add(time.Duration(s) * time.Second) }
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
	ns = ns.LiftRecovery(store.LiftRecoveryRequest{ForNew: true, Reason: "r"}, at(4))
	check("the floor of those to come is lifted", true)
	ns = ns.LiftRecovery(store.LiftRecoveryRequest{Namespace: ns.Name, Reason: "r"}, at(5))
	check("the floor is lifted", false)
	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(5), Reason: "a third backup"}, at(6))
	check("a backup from after that", false)
}
