package pebblestore_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// A restored backup is the same store to the other regions, but no home before it has heard them:
// they may know of placements that it has forgotten.
func TestARestoredStoreIsNotJoined(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	s := mustOpen(t, disk, clock)
	first, err := s.Membership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := first.WithPeer("us", store.PeerStore{StoreID: "one"})
	want.Region, want.Joined = "eu", true
	if err := s.SetMembership(t.Context(), first, want); err != nil {
		t.Fatal(err)
	}
	backUp(t, s)
	mustClose(t, s)
	clock.Advance(time.Hour)
	want.Joined = false
	for _, first := range []bool{true, false} { // and after a restart
		restored, err := openBackup(disk, clock, first)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := restored.Membership(t.Context()); err != nil || !got.Equal(want) {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
		mustClose(t, restored)
	}
}
