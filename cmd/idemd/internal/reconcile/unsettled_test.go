package reconcile

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// failure is a stored error.
func failure(t *testing.T) []byte {
	t.Helper()
	b, err := proto.Marshal(&spb.Status{Code: int32(codes.FailedPrecondition), Message: "declined"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEffectThatTheRecordDenies has effects of keys whose record says that there was none, or that
// nobody knows.
func TestEffectThatTheRecordDenies(t *testing.T) {
	w := newWorld(t)
	w.doneWith("declined", "", failure(t), "ch1") // 2: and paid
	w.claim("lapsed")
	w.effect("ch2", "lapsed", "") // 3
	key, fence := w.claim("given-up")
	w.effect("ch3", "given-up", "") // 4
	if _, err := w.store.Release(t.Context(), store.ReleaseRequest{Key: key, AttemptID: "a", Fence: fence, Effect: store.EffectUnknown}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(2 * time.Minute)
	w.claim("running")
	w.effect("ch4", "running", "") // its holder says what came of it in a moment
	counts, found, _ := w.reconcile(Options{Memory: 1 << 20, Since: storetest.Start, Until: w.now()})
	want := []string{
		"effect_of_failed_key [completed charge/declined/acme true] ch1@declined(2)",
		"effect_of_unsettled_key [lapsed charge/given-up/acme true] ch3@given-up(4)",
		"effect_of_unsettled_key [lapsed charge/lapsed/acme true] ch2@lapsed(3)",
	}
	if !slices.Equal(found, want) || counts.RecordsUnsettled != 3 || counts.RecordsJudged != 1 {
		t.Errorf("%+v\n%q\nwant\n%q", counts, found, want)
	}
	if counts, found, _ := w.reconcile(Options{Memory: 1 << 20, Since: w.now(), Until: w.now()}); len(found) > 0 || counts.EffectsOutside != 4 {
		t.Errorf("effects outside the time: %+v %q", counts, found)
	}
}

// TestSettledSinceItWasListed checks that a key counts as it is when its effect is judged.
func TestSettledSinceItWasListed(t *testing.T) {
	w := newWorld(t)
	keyOf := map[string]store.Key{}
	fences := map[string]int64{}
	for _, id := range []string{"well", "failed"} {
		keyOf[id], fences[id] = w.claim(id)
		w.effect("ch-"+id, id, "")
	}
	end := func() {
		for id, status := range map[string][]byte{"well": nil, "failed": failure(t)} {
			_, err := w.store.Complete(t.Context(), store.CompleteRequest{Key: keyOf[id], AttemptID: "a", Fence: fences[id], Outcome: &store.Outcome{Status: status}})
			if err != nil {
				t.Error(err)
			}
		}
	}
	var found []string
	_, err := Run(t.Context(), &listedBefore{w.store, end}, w.reader(), Options{Namespace: "default", Since: storetest.Start, Until: w.now(), Dir: t.TempDir(), Memory: 1 << 20},
		nil, func(f Finding) error { found = append(found, words(f)); return nil })
	if want := []string{"effect_of_failed_key [completed charge/failed/acme true] ch-failed@failed(3)"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("%q, %v, want %q", found, err, want)
	}
}

// TestOneOfTheKeysExplainsIt checks that where the file does not tell keys apart one that had the
// effect is enough, and the doubtful one is named if none had.
func TestOneOfTheKeysExplainsIt(t *testing.T) {
	w := newWorld(t)
	claim := func(scope string) (store.Key, int64) {
		t.Helper()
		key := store.Key{Namespace: "default", Scope: scope, ID: "k", Entity: "acme"}
		a, err := w.store.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a", Lease: time.Minute})
		if err != nil || a.Granted == nil {
			t.Fatal(a, err)
		}
		w.clock.Advance(time.Second)
		return key, a.Granted.Fence
	}
	complete := func(scope string, status []byte) {
		t.Helper()
		key, fence := claim(scope)
		if _, err := w.store.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{Status: status}}); err != nil {
			t.Fatal(err)
		}
	}
	complete("declined", failure(t))
	claim("lapsed")
	file := "key,time\nk," + w.now().Format(time.RFC3339) + "\n"
	w.clock.Advance(2 * time.Minute)
	_, found, _ := w.ledger(file, Options{Since: storetest.Start, Until: w.now()})
	if want := []string{"effect_of_unsettled_key [lapsed lapsed/k/acme true] @k(2)"}; !slices.Equal(found, want) {
		t.Errorf("%q, want %q", found, want)
	}
	complete("charge", nil)
	if _, found, _ = w.ledger(file, Options{Since: storetest.Start, Until: w.now()}); len(found) > 0 {
		t.Errorf("one of them was a success: %q", found)
	}
}

// listedBefore has something happen after the records were listed.
type listedBefore struct {
	Source
	then func()
}

func (l *listedBefore) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	if l.then != nil {
		l.then()
		l.then = nil
	}
	return l.Source.InspectRecord(ctx, key)
}

// reader is the ledger of the world.
func (w *world) reader() *strings.Reader { return strings.NewReader(w.file.String()) }
