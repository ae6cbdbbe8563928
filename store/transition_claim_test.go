package store_test

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// A Claim that is sent again writes nothing, so it costs no sync.
func TestClaimAgainChangesNothing(t *testing.T) {
	ns := store.Namespace{Name: "n"}.WithDefaults()
	req := store.ClaimRequest{Key: store.Key{Namespace: "n", ID: "k"}, AttemptID: "a"}
	_, first, err := store.DecideClaim(nil, &ns, req, storetest.Start, storetest.Start)
	if err != nil || first.Record == nil {
		t.Fatalf("got %+v, %v; want a grant", first, err)
	}
	answer, again, err := store.DecideClaim(first.Record, &ns, req, storetest.Start.Add(time.Second), storetest.Start)
	if err != nil || answer.Granted == nil || again != (store.Change{}) {
		t.Errorf("got %+v, change %+v, %v; want granted and no change", answer, again, err)
	}
}

// The retention of an intent ahead of the store's clock is never cut: else its record could
// expire before the intent is too old.
func TestRetentionOfAnIntentAheadIsRoundedUp(t *testing.T) {
	ns := store.Namespace{Name: "n"}.WithDefaults()
	req := store.ClaimRequest{Key: store.Key{Namespace: "n", ID: "k"}, AttemptID: "a"}
	for beyond, want := range map[time.Duration]time.Duration{
		-1: 0, 0: 0, 1: time.Microsecond, 999: time.Microsecond, 1000: time.Microsecond, 1001: 2 * time.Microsecond,
	} {
		req.IntentTime = storetest.Start.Add(ns.Skew() + beyond)
		_, change, err := store.DecideClaim(nil, &ns, req, storetest.Start, storetest.Start.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if got := change.Record.Retention - ns.Tier.MaxRetention(); got != want {
			t.Errorf("an intent %v beyond the skew adds %v to the retention, want %v", beyond, got, want)
		}
	}
}
