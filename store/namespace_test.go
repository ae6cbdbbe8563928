package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

func TestNamespaceDefaults(t *testing.T) {
	day := store.Namespace{Name: "n"}.WithDefaults()
	want := store.Namespace{
		Name: "n", Tier: store.TierDay, Retention: 24 * time.Hour, LapsePolicy: store.Takeover,
		Lease: 30 * time.Second, MaxLease: 15 * time.Minute, MaxAttempt: time.Hour, MaxOutcomeBytes: 256 << 10,
	}
	if !day.SameSettings(want) {
		t.Errorf("got %+v, want %+v", day, want)
	}
	minute := store.Namespace{Name: "n", Retention: time.Minute}.WithDefaults()
	if minute.Tier != store.TierHour || minute.MaxAttempt != 15*time.Minute || minute.Skew() != 6*time.Second {
		t.Errorf("retention of a minute: tier %v, max attempt %v, skew %v; want the hour tier, 15 min, 6 s",
			minute.Tier, minute.MaxAttempt, minute.Skew())
	}
	if err := minute.Validate(); err != nil {
		t.Errorf("defaults are refused: %v", err)
	}
}

func TestNamespaceLimits(t *testing.T) {
	tests := []struct {
		name string
		ns   store.Namespace
		says string
	}{
		{"retention below a minute", store.Namespace{Retention: 59 * time.Second}, "retention 59s is outside 1m to 35d"},
		{"retention above 35 days", store.Namespace{Retention: 36 * 24 * time.Hour}, "retention 36d is outside 1m to 35d"},
		{"retention above the tier", store.Namespace{Tier: store.TierHour, Retention: 2 * time.Hour}, "retention 2h is more than the 1h of its tier, which stays as the namespace was created: create another with a longer tier, up to 35d"},
		{"attempt above a quarter of the tier", store.Namespace{Tier: store.TierHour, MaxAttempt: 16 * time.Minute}, "max attempt 16m is outside 1s to 15m"},
		{"lease above its longest", store.Namespace{Lease: time.Minute, MaxLease: 30 * time.Second}, "lease 1m is outside 1s to 30s"},
		{"outcomes above 256 KiB", store.Namespace{MaxOutcomeBytes: 256<<10 + 1}, "max outcome bytes 262145 is outside 1024 to 262144"},
		{"outcomes below 1 KiB", store.Namespace{MaxOutcomeBytes: 1<<10 - 1}, "max outcome bytes 1023 is outside 1024 to 262144"},
		{"negative outcomes", store.Namespace{MaxOutcomeBytes: -1}, "max outcome bytes -1 is outside 1024 to 262144"},
		{"unknown tier", store.Namespace{Tier: 9}, "tier is not one of"},
		{"unknown lapse policy", store.Namespace{LapsePolicy: 9}, "lapse policy is not one of"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.ns.Name = "n"
			ns := test.ns.WithDefaults()
			checkRefusal(t, ns.Validate(), store.ErrInvalidArgument, test.says)
		})
	}
}

func TestSixBucketsCoverAKey(t *testing.T) {
	for _, tier := range store.Tiers {
		oldest := tier.BucketWidth() + tier.MaxAttempt() + tier.MaxRetention()
		if oldest > 6*tier.BucketWidth() {
			t.Errorf("tier %v: a key can be %v old, six buckets cover %v", tier, oldest, 6*tier.BucketWidth())
		}
	}
}

func TestRaisedRetentionDoesNotForgetTheOldOne(t *testing.T) {
	at := func(d time.Duration) time.Time { return storetest.Start.Add(d) }
	ns := store.Namespace{Name: "n", Tier: store.TierDay, Retention: time.Hour}.WithDefaults()
	raised, err := ns.Replace(ns, at(0))
	if err != nil {
		t.Fatal(err)
	}
	raised.Retention = 24 * time.Hour
	if raised, err = raised.Replace(ns, at(10*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ intent, want time.Duration }{
		{9 * time.Hour, time.Hour},  // its record may have ended, and expired, under one hour
		{10 * time.Hour, time.Hour}, // at the change
		{10*time.Hour + 1, 24 * time.Hour},
	} {
		if got := raised.RetentionSince(at(test.intent)); got != test.want {
			t.Errorf("intent at %v: retention %v, want %v", test.intent, got, test.want)
		}
	}
	lowered := raised
	lowered.Retention = 2 * time.Hour
	if lowered, err = lowered.Replace(raised, at(11*time.Hour)); err != nil || len(lowered.PastRetentions) != 1 {
		t.Errorf("lowering: %v, past %v; want the one past retention kept", err, lowered.PastRetentions)
	}
	for _, age := range []struct {
		since time.Duration
		kept  int
	}{{35 * 24 * time.Hour, 1}, {35*24*time.Hour + 1, 0}} {
		later, err := lowered.Replace(lowered, at(10*time.Hour+age.since))
		if err != nil || len(later.PastRetentions) != age.kept {
			t.Errorf("%v after the change: %v, past %v; want %d", age.since, err, later.PastRetentions, age.kept)
		}
	}
	if later, err := lowered.Replace(lowered, at(60*24*time.Hour)); err != nil || len(later.PastRetentions) != 0 {
		t.Errorf("60 days later: %v, past %v; want none", err, later.PastRetentions)
	}
}

// raises is a namespace whose retention changes, and all that was in force before a raise.
type raises struct {
	ns   store.Namespace
	now  time.Time
	full []store.PastRetention
}

func startRaises() *raises {
	return &raises{ns: store.Namespace{Name: "n", Tier: store.TierMonth, Retention: time.Hour}.WithDefaults(), now: storetest.Start}
}

func (r *raises) set(t require, after, retention time.Duration) {
	r.now = r.now.Add(after)
	next := r.ns
	next.Retention = retention
	next, err := next.Replace(r.ns, r.now)
	if err != nil {
		t.Fatalf("retention %v: %v", retention, err)
	}
	if retention > r.ns.Retention {
		r.full = append(r.full, store.PastRetention{Retention: r.ns.Retention, Until: r.now})
	}
	r.ns = next
	if n := len(next.PastRetentions); n > store.MaxPastRetentions {
		t.Fatalf("%d past retentions are kept, more than %d", n, store.MaxPastRetentions)
	}
}

// since is the answer by the full list.
func (r *raises) since(at time.Time) time.Duration {
	full := r.ns
	full.PastRetentions = r.full
	return full.RetentionSince(at)
}

type require interface{ Fatalf(string, ...any) }

func TestPastRetentionsThatAnotherCoversAreDropped(t *testing.T) {
	r := startRaises()
	for i := range 1000 {
		r.set(t, time.Minute, time.Duration(1+i%2)*time.Hour)
	}
	want := []store.PastRetention{{Retention: time.Hour, Until: r.now}}
	if !slices.Equal(r.ns.PastRetentions, want) {
		t.Fatalf("got %d past retentions, ending with %v; want %v", len(r.ns.PastRetentions), r.ns.PastRetentions[len(r.ns.PastRetentions)-1:], want)
	}
}

func TestPastRetentionsAnswerAsAllOfThemWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := startRaises()
		for range rapid.IntRange(0, 40).Draw(t, "changes") {
			r.set(t, time.Duration(rapid.IntRange(0, 3).Draw(t, "after"))*time.Minute, time.Duration(rapid.IntRange(1, store.MaxPastRetentions).Draw(t, "hours"))*time.Hour)
			r.check(t, func(got, full time.Duration) bool { return got == full })
		}
	})
}

// Of too many, some are taken for longer in force than they were: nothing is taken for new that
// may have expired.
func TestTooManyPastRetentionsAreJoinedToTheSafeSide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := startRaises()
		shortest := r.ns.Retention
		for range rapid.IntRange(0, 100).Draw(t, "changes") {
			retention := time.Duration(rapid.IntRange(1, 500).Draw(t, "hours")) * time.Hour
			r.set(t, time.Duration(rapid.IntRange(0, 3).Draw(t, "after"))*time.Minute, retention)
			shortest = min(shortest, retention)
			r.check(t, func(got, full time.Duration) bool { return shortest <= got && got <= full })
		}
	})
}

// check compares the answers about all instants between which one can change.
func (r *raises) check(t *rapid.T, fits func(got, full time.Duration) bool) {
	for _, past := range r.full {
		for _, at := range []time.Time{past.Until, past.Until.Add(1)} {
			if got, full := r.ns.RetentionSince(at), r.since(at); !fits(got, full) {
				t.Fatalf("intent at %v: retention %v, by the full list %v\nfull %v\nkept %v", at, got, full, r.full, r.ns.PastRetentions)
			}
		}
	}
}

func TestRecordTimesAreWholeMicroseconds(t *testing.T) {
	ns := store.Namespace{
		Name: "n", Retention: time.Minute + 1, Lease: time.Second + 1, MaxLease: 2*time.Second + 1, MaxAttempt: time.Minute + 1,
	}.WithDefaults()
	req := store.ClaimRequest{Key: store.Key{Namespace: "n", ID: "k"}, AttemptID: "a"}
	for _, lease := range []time.Duration{0, time.Second + 1} {
		req.Lease = lease
		_, change, err := store.DecideClaim(nil, &ns, req, storetest.Start, storetest.Start)
		if err != nil {
			t.Fatal(err)
		}
		rec := change.Record
		for name, at := range map[string]time.Time{"lease end": rec.LeaseEnd, "attempt limit": rec.AttemptLimit, "expires at": rec.ExpiresAt} {
			if at.Nanosecond()%1000 != 0 {
				t.Errorf("lease %v: %s is %v", lease, name, at)
			}
		}
	}
}

func TestTierIsFixed(t *testing.T) {
	ns := store.Namespace{Name: "n"}.WithDefaults()
	ns.Tier = store.TierWeek
	if _, err := ns.Replace(store.Namespace{Name: "n"}.WithDefaults(), storetest.Start); !errors.Is(err, store.ErrInvalidArgument) {
		t.Errorf("another tier: got %v, want a refusal", err)
	}
}
