package reconcile

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// TestIntentIsOfItsOperation checks that a charge and a receipt of one order are two intents,
// and that so are orders of one number of two customers, if the file tells them apart.
func TestIntentIsOfItsOperation(t *testing.T) {
	w := newWorld(t)
	at := w.now().Format(time.RFC3339)
	const two = "two_effects_for_intent"
	for _, test := range []struct {
		file string
		o    Options
		want int
	}{
		{"key,time,scope,entity,intent\nk1,AT,charge,acme,1\nk1,AT,receipt,acme,1\n", Options{}, 0},
		{"key,time,scope,intent\nk1,AT,charge,1\nk1,AT,receipt,1\n", Options{}, 0},
		{"key,time,entity,intent\nk1,AT,acme,1\nk1,AT,other,1\n", Options{}, 0},
		{"key,time,scope,intent\nk1,AT,charge,1\nk2,AT,charge,1\n", Options{}, 1},
		{"key,time,scope,intent\nk1,AT,,1\nk2,AT,charge,1\n", Options{Scope: "charge"}, 1},
		{"key,time,intent\nk1,AT,1\nk2,AT,1\n", Options{}, 1},
		{"key,time,scope,entity\nk1,AT,charge,order-1\nk1,AT,receipt,order-1\n", Options{OnePerEntity: true}, 0},
		{"key,time,scope,entity\nk1,AT,charge,order-1\nk2,AT,charge,order-1\n", Options{OnePerEntity: true}, 1},
		{"key,time,entity\nk1,AT,order-1\nk2,AT,order-1\n", Options{OnePerEntity: true}, 1},
	} {
		_, found, _ := w.ledger(strings.ReplaceAll(test.file, "AT", at), test.o)
		n := 0
		for _, f := range found {
			if strings.HasPrefix(f, two) {
				n++
			}
		}
		if n != test.want {
			t.Errorf("%q %+v: %q, want %d of %s", test.file, test.o, found, test.want, two)
		}
	}
}

// TestRecordsThatMayBeGone goes along the end of the retention: an effect has no record any more
// that was made before it, or if the ledger's clock is ahead.
func TestRecordsThatMayBeGone(t *testing.T) {
	now := storetest.Start
	const hour = time.Hour
	day := store.Namespace{Retention: 24 * hour, MaxAttempt: hour}
	for name, test := range map[string]struct {
		change func(*store.Namespace)
		want   time.Duration // before now
	}{
		"as it is":          {func(*store.Namespace) {}, 23*hour - time.Minute},
		"it was shorter":    {func(ns *store.Namespace) { ns.PastRetentions = []store.PastRetention{{Retention: 12 * hour}} }, 11*hour - time.Minute},
		"short":             {func(ns *store.Namespace) { ns.Retention = time.Hour }, hour / 2},
		"restored":          {func(ns *store.Namespace) { ns.RecoveryFloor = now.Add(-10 * hour) }, 9*hour - time.Minute},
		"restored long ago": {func(ns *store.Namespace) { ns.RecoveryFloor = now.Add(-30 * hour) }, 23*hour - time.Minute},
	} {
		ns := day
		test.change(&ns)
		if got := now.Sub(knownAfter(ns, now)); got != test.want {
			t.Errorf("%s: known after %v ago, want %v", name, got, test.want)
		}
	}

	w := newWorld(t)
	w.done("k1", "")
	at := w.now().Add(10 * time.Second)
	w.clock.Advance(24*hour + 2*time.Second)
	file := "effect,key,time,scope,entity\nch1,k1," + at.Format(time.RFC3339) + ",charge,acme\n"
	counts, found, _ := w.ledger(file, Options{Since: at.Add(-hour), Until: w.now()})
	if len(found) > 0 || counts.EffectsTooOld != 1 {
		t.Errorf("a clock that is 10 s ahead: %q, %+v", found, counts)
	}
}

// TestFoundByALaterAttempt checks that what an earlier attempt may have done is looked for from its
// grant on.
func TestFoundByALaterAttempt(t *testing.T) {
	w := newWorld(t)
	attempt := func(id, attempt string) (store.Key, int64) {
		t.Helper()
		key := store.Key{Namespace: store.DefaultNamespace, Scope: "charge", ID: id, Entity: "acme"}
		a, err := w.store.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: attempt, Lease: time.Minute})
		if err != nil || a.Granted == nil {
			t.Fatal(a, err)
		}
		w.clock.Advance(time.Second)
		return key, a.Granted.Fence
	}
	released, fence := attempt("released", "a") // nothing happened, as it says
	if _, err := w.store.Release(t.Context(), store.ReleaseRequest{Key: released, AttemptID: "a", Fence: fence, Effect: store.EffectNone}); err != nil {
		t.Fatal(err)
	}
	before := w.now()
	attempt("lapsed", "a") // acts, and dies
	attempt("often", "a")
	since := w.now()
	w.clock.Advance(2 * time.Minute)
	attempt("often", "b")
	w.clock.Advance(time.Hour)
	for _, id := range []string{"released", "lapsed", "often"} {
		key, fence := attempt(id, "c")
		if _, err := w.store.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "c", Fence: fence, Outcome: &store.Outcome{}}); err != nil {
			t.Fatal(err)
		}
	}
	const nothing = "key_without_effect [completed charge/%s/acme true]"
	want := func(ids ...string) (all []string) {
		for _, id := range ids {
			all = append(all, strings.ReplaceAll(nothing, "%s", id))
		}
		return all
	}
	const file = "effect,key,time,scope,entity\n"
	counts, found, _ := w.ledger(file, Options{Since: since, Until: w.now()})
	if !slices.Equal(found, want("released")) || counts.RecordsJudged != 1 || counts.RecordsOutside != 2 {
		t.Errorf("the first attempts were before: %q, %+v", found, counts)
	}
	counts, found, _ = w.ledger(file, Options{Since: before, Until: w.now()})
	if !slices.Equal(found, want("lapsed", "often", "released")) || counts.RecordsJudged != 3 {
		t.Errorf("all of it: %q, %+v", found, counts)
	}
}
