package store_test

import (
	"errors"
	"strings"
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

// A refusal for what may be forgotten says what an intent time must be later than, to the
// microsecond: that is not the floor, because clocks differ.
func TestUnknownHistorySaysWhatIsNewer(t *testing.T) {
	floor := storetest.Start.Add(1234567 * time.Microsecond)
	ns := store.Namespace{Name: "n", RecoveryFloor: floor}.WithDefaults()
	newer := floor.Add(store.MaxSkew)
	now := newer.Add(time.Hour)
	claim := func(intent time.Time) error {
		req := store.ClaimRequest{Key: store.Key{Namespace: "n", ID: "k"}, AttemptID: "a", IntentTime: intent}
		_, _, err := store.DecideClaim(nil, &ns, req, now, now)
		return err
	}
	for _, intent := range []time.Time{{}, floor, newer} {
		err := claim(intent)
		if !errors.Is(err, store.ErrUnknownHistory) {
			t.Fatalf("intent %v: %v", intent, err)
		}
		for _, want := range []string{floor.Format(time.RFC3339Nano), "after " + newer.Format(time.RFC3339Nano)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v lacks %q", err, want)
			}
		}
	}
	if err := claim(newer.Add(time.Microsecond)); err != nil {
		t.Errorf("what is newer: %v", err)
	}
}
