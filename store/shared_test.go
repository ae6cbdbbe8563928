package store_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/idemd/idemd/store"
)

// Which regions have a namespace in common is said by its store, is no setting, and is a reason to ask
// before a floor is lifted.
func TestSharedBy(t *testing.T) {
	both, said := []string{"eu", "us"}, []string{"mars", "venus"}
	ns := store.Namespace{Name: "pay"}.WithDefaults()
	asked := ns
	asked.SharedBy = said
	if !ns.SameSettings(asked) {
		t.Error("it passes for a setting")
	}
	if created := asked.Create(nil, at(1)); created.SharedBy != nil {
		t.Errorf("one that is created is shared by %q", created.SharedBy)
	}
	ns.SharedBy = both
	ns, err := asked.Replace(ns, at(1))
	if err != nil || !slices.Equal(ns.SharedBy, both) {
		t.Fatalf("one that is changed is shared by %q, %v", ns.SharedBy, err)
	}

	ns = ns.BeginRecovery(store.BeginRecoveryRequest{CompleteUntil: at(1), Reason: "r"}, at(2))
	lift := store.LiftRecoveryRequest{Namespace: ns.Name, LeasesEnded: true, Reason: "r"}
	if _, err := ns.LiftRecovery(lift, at(3)); !errors.Is(err, store.ErrNotConfirmed) || !strings.Contains(err.Error(), "regions eu, us are in one database") {
		t.Errorf("lifted in all regions unasked: %v", err)
	}
	lift.AllRegions = true
	if ns, err := ns.LiftRecovery(lift, at(3)); err != nil || !ns.RecoveryFloor.IsZero() {
		t.Errorf("not lifted: %+v, %v", ns, err)
	}
}
