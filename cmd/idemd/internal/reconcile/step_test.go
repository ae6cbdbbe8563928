package reconcile

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// derived is the key that an attempt gives the other system.
func derived(id, step string) string {
	return key.Downstream(store.Key{Namespace: store.DefaultNamespace, Scope: "charge", ID: id, Entity: "acme"}, step)
}

// TestStep compares the export of a provider, which knows the key that was derived for it and
// neither the record's id nor its scope and entity.
func TestStep(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"fine", "nothing", "twice", "one", "other"} {
		w.done(id, "")
	}
	at := w.now().Add(-time.Second).Format(time.RFC3339)
	file := "effect,key,time,intent\n"
	line := func(effect, key, intent string) { file += fmt.Sprintf("%s,%s,%s,%s\n", effect, key, at, intent) }
	line("ch1", derived("fine", "charge"), "o1")  // 2
	line("ch2", derived("twice", "charge"), "o2") // 3
	line("ch3", derived("twice", "charge"), "o2")
	line("ch4", derived("one", "charge"), "o3") // 5
	line("ch5", derived("other", "charge"), "o3")
	line("ch6", "", "o4") // 7
	line("ch7", "made-by-hand", "o5")
	line("ch8", derived("fine", "refund"), "o1") // 9: of another step, which the file is not about
	line("ch9", "nothing", "o6")                 // 10: an id is no derived key
	o := Options{Since: storetest.Start, Until: w.now(), Step: "charge"}
	want := []string{
		"effect_without_key ch6@(7)",
		"effect_without_key ch7@made-by-hand(8)",
		"effect_without_key ch8@" + derived("fine", "refund") + "(9)",
		"effect_without_key ch9@nothing(10)",
		"key_without_effect [completed charge/nothing/acme true]",
		fmt.Sprintf("two_effects_for_intent ch1@%s(2) ch8@%s(9)", derived("fine", "charge"), derived("fine", "refund")),
		fmt.Sprintf("two_effects_for_intent ch4@%s(5) ch5@%s(6)", derived("one", "charge"), derived("other", "charge")),
		fmt.Sprintf("two_effects_for_key [completed charge/twice/acme true] ch2@%s(3) ch3@%s(4)", derived("twice", "charge"), derived("twice", "charge")),
	}
	counts, found, _ := w.ledger(file, o)
	if !slices.Equal(found, want) || counts.EffectsRecorded != 5 {
		t.Errorf("%+v\n%q\nwant\n%q", counts, found, want)
	}

	// Whose an effect is the record says, where the file does not.
	o.OnePerEntity = true
	_, found, _ = w.ledger("effect,key,time\nch1,"+derived("fine", "charge")+","+at+"\nch2,"+derived("one", "charge")+","+at+"\n", o)
	pair := fmt.Sprintf("two_effects_for_intent ch1@%s(2) ch2@%s(3)", derived("fine", "charge"), derived("one", "charge"))
	if !slices.Contains(found, pair) {
		t.Errorf("one per entity: %q", found)
	}

	// Scopes and entities that the file has besides are in the derived key already.
	counts, found, _ = w.ledger("key,time,scope,entity\n"+derived("fine", "charge")+","+at+",,\n"+derived("one", "charge")+","+at+",elsewhere,someone\n", Options{Since: storetest.Start, Until: w.now(), Step: "charge"})
	if counts.EffectsRecorded != 2 || len(found) != 3 {
		t.Errorf("%+v, %q", counts, found)
	}
}

// TestStepNamesTheRecord checks that an effect under a derived key says of which record it is.
func TestStepNamesTheRecord(t *testing.T) {
	w := newWorld(t)
	w.done("one", "")
	w.done("other", "")
	at := w.now().Add(-time.Second).Format(time.RFC3339)
	w.file.Reset()
	fmt.Fprintf(&w.file, "key,time,intent\n%s,%s,o\n%s,%s,o\n", derived("one", "charge"), at, derived("other", "charge"), at)
	var got []string
	report := func(f Finding) error {
		for _, e := range f.Effects {
			got = append(got, fmt.Sprint(f.Kind, " ", e.Scope, "/", e.RecordKey, "/", e.Entity))
		}
		return nil
	}
	_, err := Run(t.Context(), w.store, w.reader(), Options{Namespace: "default", Since: storetest.Start, Until: w.now(), Step: "charge", Dir: t.TempDir(), Memory: 1 << 20}, nil, report)
	if want := []string{"two_effects_for_intent charge/one/acme", "two_effects_for_intent charge/other/acme"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestManyOfAStep holds more derived keys against more records than are kept in memory.
func TestManyOfAStep(t *testing.T) {
	m := many{n: 5000, now: storetest.Start}
	r, file := io.Pipe()
	go func() {
		at := m.now.Add(-time.Hour).Format(time.RFC3339)
		_, _ = fmt.Fprintln(file, "effect,key,time,intent")
		page, _ := m.ListRecords(context.Background(), store.ListRequest{PageSize: m.n})
		for i, rec := range page.Records[:m.n-1] {
			_, _ = fmt.Fprintf(file, "ch_%d,%s,%s,order-%d\n", i, key.Downstream(rec.Key, "charge"), at, i)
		}
		_ = file.Close()
	}()
	var found []string
	counts, err := Run(t.Context(), m, r, Options{Namespace: "default", Step: "charge", Dir: t.TempDir(), Memory: m.n * 100}, nil,
		func(f Finding) error { found = append(found, words(f)); return nil })
	want := fmt.Sprintf("key_without_effect [completed charge/order-%d/customer-%d true]", m.n-1, (m.n-1)%1000)
	if err != nil || counts.EffectsRecorded != m.n-1 || len(found) != 1 || found[0] != want {
		t.Errorf("%+v, %v, %q", counts, err, found)
	}
}
