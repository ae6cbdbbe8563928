package region

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// Whatever is done to a record that was carried over, it does not expire earlier than it would
// have in the store that it comes from.
func TestCarriedRecordsDoNotExpireEarly(t *testing.T) {
	const ahead = 40 * time.Second
	granted := time.Date(2026, 1, 1, 0, 0, 20, 0, time.UTC)
	lapsed := &store.Record{
		Key: store.Key{Namespace: "orders", ID: "1"}, State: store.StateInProgress, Fence: granted.UnixMicro(), AttemptID: "a", AttemptNumber: 2,
		GrantedAt: granted, LeaseEnd: granted.Add(5 * time.Second), AttemptLimit: granted.Add(30 * time.Second),
		ExpiresAt: granted.Add(5*time.Second + 2*time.Minute), LapsePolicy: store.Takeover, Retention: 2 * time.Minute, UnsettledSince: granted.Add(-time.Minute),
	}
	ns := (store.Namespace{Name: "orders", Retention: 2 * time.Minute}).WithDefaults()
	now := granted.Add(time.Minute) // by the clock of the store it comes from
	carried := later(lapsed, ahead)
	for _, effect := range []store.Effect{store.EffectNone, store.EffectUnknown} {
		_, change, err := store.DecideRelease(carried, &ns, store.ReleaseRequest{Key: lapsed.Key, AttemptID: "a", Fence: lapsed.Fence, Effect: effect}, now.Add(ahead))
		if err != nil {
			t.Fatal(err)
		}
		if want := lapsed.ExpiresAt.Add(ahead); !change.Record.ExpiresAt.Equal(want) {
			t.Errorf("released with effect %v, it expires at %v, want %v", effect, change.Record.ExpiresAt, want)
		}
	}
	if carried.Lapsed(now.Add(ahead)) != lapsed.Lapsed(now) {
		t.Error("it has a lease again")
	}
}
