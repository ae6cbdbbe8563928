package region

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// onDisk makes regions with embedded stores in which the default namespace is of us.
func onDisk(t *testing.T) *world {
	w := build(t, `"*": fixed us`, "eu", "us", "ap")
	for _, s := range w.sites {
		opened, err := pebblestore.Open("store", pebblestore.Options{FS: vfs.NewMem(), Source: w.clock, MaintainEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		s.store = opened
		t.Cleanup(func() {
			if err := opened.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	w.startAll()
	return w
}

// move moves the default namespace as a server of the region does. The clocks go on a little
// with each step.
func (s *site) move(ctx context.Context, m *pb.MoveNamespaceRequest, tell func(*pb.MoveNamespaceResponse) error) error {
	m.Namespace, m.Actor = store.DefaultNamespace, "alice"
	return s.region.MoveNamespace(ctx, m, func(step *pb.MoveNamespaceResponse) error {
		s.world.clock.Advance(time.Millisecond)
		return tell(step)
	})
}

// moveTo is move that returns the steps.
func (s *site) moveTo(ctx context.Context, m *pb.MoveNamespaceRequest) (steps []string, err error) {
	err = s.move(ctx, m, func(step *pb.MoveNamespaceResponse) error {
		steps = append(steps, step.GetStep())
		return nil
	})
	return steps, err
}

// filled claims keys at the router of us and has them end in every way there is. It returns what
// is known of each.
func filled(w *world) map[store.Key]store.Inspection {
	w.Helper()
	us := w.us().router
	large := &store.Outcome{Body: bytes.Repeat([]byte("x"), 256<<10), Status: nil}
	must := func(_ any, err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	claim := func(id, attempt string, hold bool) (store.Key, int64) {
		w.Helper()
		key := store.Key{Namespace: store.DefaultNamespace, ID: id}
		answer, err := us.Claim(w.Context(), store.ClaimRequest{Key: key, AttemptID: attempt, Hold: hold})
		if err != nil || answer.Granted == nil {
			w.Fatalf("%s: %+v, %v", id, answer, err)
		}
		return key, answer.Granted.Fence
	}
	var keys []store.Key
	for i := range 30 { // more than one message may have
		key, fence := claim(fmt.Sprintf("large-%d", i), "a", false)
		_, err := us.Complete(w.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: large})
		must(nil, err)
		keys = append(keys, key)
	}
	lapsed, _ := claim("lapsed", "a", false)
	held, _ := claim("held", "a", true)
	freed, fence := claim("freed", "a", false)
	_, err := us.Release(w.Context(), store.ReleaseRequest{Key: freed, AttemptID: "a", Fence: fence, Effect: store.EffectNone})
	must(nil, err)
	w.clock.Advance(time.Minute)
	events, fence := claim("lapsed", "b", false)
	for i := range 40 { // late outcomes: as many as are kept, and as large
		_, err := us.Complete(w.Context(), store.CompleteRequest{Key: events, AttemptID: "a", Fence: fence - 1, Outcome: &store.Outcome{Body: bytes.Repeat([]byte{byte(i)}, 8000)}})
		if !errors.Is(err, store.ErrStaleFence) {
			w.Fatal(err)
		}
	}
	w.clock.Advance(time.Minute)
	keys = append(keys, lapsed, held, freed)
	known := map[store.Key]store.Inspection{}
	for _, key := range keys {
		known[key], err = us.InspectRecord(w.Context(), key)
		must(nil, err)
		stored, err := w.us().store.InspectRecord(w.Context(), key) // with attempt ids
		must(nil, err)
		known[key] = stored
	}
	return known
}

// Over gRPC, between embedded stores: all that is known of a key arrives as it was, whatever its
// size.
func TestMoveOverTheWire(t *testing.T) {
	w := onDisk(t)
	known := filled(w)
	steps, err := w.eu().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"})
	if want := []string{"frozen", "sealed", "copied", "flipped", "forgotten", "done"}; err != nil || !slices.Equal(steps, want) {
		t.Fatalf("steps %q, %v, want %q", steps, err, want)
	}
	for key, want := range known {
		got, err := w.eu().store.InspectRecord(t.Context(), key)
		if err != nil || fmt.Sprintf("%+v", *got.Record) != fmt.Sprintf("%+v", withOutcomeOf(*want.Record, got.Record)) || len(got.Events) != len(want.Events) {
			t.Errorf("%s arrived as %+v with %d events, %v, and was %+v with %d", key.ID, got.Record, len(got.Events), err, want.Record, len(want.Events))
			continue
		}
		if o := want.Record.Outcome; o != nil && o.Digest() != got.Record.Outcome.Digest() {
			t.Errorf("the outcome of %s differs", key.ID)
		}
		for i := range got.Events {
			if e, f := got.Events[i], want.Events[i]; !e.At.Equal(f.At) || e.Kind != f.Kind || e.Fence != f.Fence || e.OutcomeDigest != f.OutcomeDigest {
				t.Errorf("%s: event %d is %+v and was %+v", key.ID, i, e, f)
			}
		}
	}
	if page, err := w.us().store.ListRecords(t.Context(), store.ListRequest{Namespace: store.DefaultNamespace}); err != nil || len(page.Records) > 0 {
		t.Errorf("us still has %d records, %v", len(page.Records), err)
	}
	used(w)
}

// withOutcomeOf is the record with the other's pointer to an equal outcome, for comparing texts.
func withOutcomeOf(rec store.Record, other *store.Record) store.Record {
	rec.Outcome = other.Outcome
	return rec
}

// used asks every region for what was moved by filled.
func used(w *world) {
	w.Helper()
	for _, s := range w.sites {
		key := store.Key{Namespace: store.DefaultNamespace, ID: "large-1"}
		answer, err := s.router.Claim(w.Context(), store.ClaimRequest{Key: key, AttemptID: "z"})
		if err != nil || answer.Completed == nil || answer.Served.Home != "eu" || answer.Served.Epoch != 2 {
			w.Errorf("a repeat at %s: %+v, %v", s.name, answer, err)
		}
		key.ID = "held"
		if answer, err = s.router.Claim(w.Context(), store.ClaimRequest{Key: key, AttemptID: "z"}); err != nil || answer.Unresolved == nil {
			w.Errorf("a key that is held, at %s: %+v, %v", s.name, answer, err)
		}
	}
	us := w.us().router
	key := store.Key{Namespace: store.DefaultNamespace, ID: "lapsed"}
	if _, err := us.Claim(w.Context(), store.ClaimRequest{Key: key, AttemptID: "a"}); !errors.Is(err, store.ErrStaleAttempt) {
		w.Errorf("an attempt that has ended: %v", err)
	}
	answer, err := us.Claim(w.Context(), store.ClaimRequest{Key: key, AttemptID: "c"})
	if err != nil || answer.Granted == nil || !answer.Granted.Unsettled || answer.Granted.AttemptNumber != 3 {
		w.Errorf("a lapsed key: %+v, %v", answer, err)
	}
}

func TestMoveManyRecords(t *testing.T) {
	records := 10_000
	if testing.Short() {
		records = 2500
	}
	w := onDisk(t)
	us := w.us().router
	for i := range records {
		key := store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprint(i)}
		answer, err := us.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			continue // it lapses
		}
		if _, err := us.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: answer.Granted.Fence, Outcome: &store.Outcome{Body: []byte("done")}}); err != nil {
			t.Fatal(err)
		}
	}
	w.clock.Advance(time.Minute)
	var copied int64
	begun := time.Now()
	err := w.eu().move(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"}, func(m *pb.MoveNamespaceResponse) error {
		if m.GetStep() == "copied" {
			copied = m.GetCount()
		}
		return nil
	})
	if err != nil || copied != int64(records) {
		t.Fatalf("%d records were copied, %v", copied, err)
	}
	t.Logf("%d records in %v", records, time.Since(begun))
	for i := range records {
		found, err := w.ap().router.Lookup(t.Context(), store.LookupRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprint(i)}})
		if err != nil || (found.State == store.StateCompleted) != (i%3 != 0) {
			t.Fatalf("record %d is %+v, %v", i, found, err)
		}
	}
}

// A source that cannot be reached stops the move where it is, quickly and with a hint; it goes
// on once the source is back. The same move can be given up in the source's own region.
func TestMoveFromARegionThatIsLost(t *testing.T) {
	w := onDisk(t)
	filled(w)
	stop := errors.New("stop")
	err := w.eu().move(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"}, func(m *pb.MoveNamespaceResponse) error {
		if m.GetStep() == "sealed" {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	w.silence("eu", "us")
	if _, err := w.eu().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"}); !errors.Is(err, store.ErrHomeUnreachable) || !strings.Contains(err.Error(), `region "us"`) {
		t.Fatalf("got %v", err)
	}
	w.eu().events.wait(w, "us", false)
	w.heal("eu", "us")
	w.eu().events.wait(w, "us", true)
	if steps, err := w.eu().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"}); err != nil || steps[0] != "sealed" {
		t.Fatalf("steps %q, %v", steps, err)
	}
	used(w)
}

// While a namespace moves, repeats are answered in every region and nothing is granted; holders
// can end until it is sealed. Given up, it serves as before.
func TestMoveIsAbandonedWhileItWaits(t *testing.T) {
	w := onDisk(t)
	filled(w)
	key := store.Key{Namespace: store.DefaultNamespace, ID: "running"}
	running, err := w.ap().router.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- w.eu().move(ctx, &pb.MoveNamespaceRequest{ToRegion: "eu", Patience: durationpb.New(time.Hour)}, func(m *pb.MoveNamespaceResponse) error {
			if m.GetStep() == "waiting" && m.GetCount() == 1 {
				close(waiting)
			}
			return nil
		})
	}()
	<-waiting
	fresh := store.Key{Namespace: store.DefaultNamespace, ID: "fresh"}
	for _, s := range w.sites {
		if _, err := s.router.Claim(t.Context(), store.ClaimRequest{Key: fresh, AttemptID: "a"}); !errors.Is(err, store.ErrNamespaceMoving) {
			t.Errorf("a new key at %s while the namespace is frozen: %v", s.name, err)
		}
	}
	if _, err := w.ap().router.Renew(t.Context(), store.RenewRequest{Key: key, AttemptID: "a", Fence: running.Granted.Fence}); err != nil {
		t.Errorf("renewing while frozen: %v", err)
	}
	if steps, err := w.ap().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu", Abandon: true}); err != nil || !slices.Equal(steps, []string{"abandoned"}) {
		t.Fatalf("steps %q, %v", steps, err)
	}
	if answer, err := w.eu().router.Claim(t.Context(), store.ClaimRequest{Key: fresh, AttemptID: "a"}); err != nil || answer.Granted == nil || answer.Served.Home != "us" {
		t.Errorf("a new key after it was abandoned: %+v, %v", answer, err)
	}
	// The mover that still waits finds out when it wants to go on.
	w.clock.Advance(time.Hour)
	if err := <-ended; !errors.Is(err, store.ErrWrongRegion) || !strings.Contains(err.Error(), "abandoned") {
		t.Errorf("the mover ended with %v", err)
	}
	cancel()
}

// Whoever creates a namespace can move it at once. One that lacks something for its placement is
// refused with what that is.
func TestMoveRightAfterCreation(t *testing.T) {
	w := start(t, `"*": fixed us`, "eu", "us", "ap")
	if _, err := w.us().router.CreateNamespace(t.Context(), store.Namespace{Name: "fresh"}); err != nil {
		t.Fatal(err)
	}
	err := w.eu().region.MoveNamespace(t.Context(), &pb.MoveNamespaceRequest{Namespace: "fresh", ToRegion: "eu"}, func(*pb.MoveNamespaceResponse) error {
		w.clock.Advance(time.Millisecond)
		return nil
	})
	if err != nil {
		t.Errorf("moved right after it was created: %v", err)
	}
	if _, err := w.eu().store.CreateNamespace(t.Context(), store.Namespace{Name: "alone"}); err != nil {
		t.Fatal(err)
	}
	err = w.eu().region.MoveNamespace(t.Context(), &pb.MoveNamespaceRequest{Namespace: "alone", ToRegion: "eu"}, func(*pb.MoveNamespaceResponse) error { return nil })
	refuses(t, err, store.ErrUnavailable, "has no home yet", "did not have this namespace")
}

// A store that was lost is not moved from, or by, as if it had been empty.
func TestMoveFromAStoreThatWasLost(t *testing.T) {
	w := start(t, `"*": fixed us`, "eu", "us", "ap")
	lost := w.us().loseStore()
	_, err := w.eu().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"})
	refuses(t, err, store.ErrHomeUnreachable, `region "us" did not answer (its store has the id`)
	_, err = w.us().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "us"})
	refuses(t, err, store.ErrUnavailable, "is home to no keys yet", "idemd region accept us")
	if ns, err := lost.GetNamespace(t.Context(), store.DefaultNamespace); err != nil || ns.Placement != (store.Placement{}) {
		t.Errorf("the lost store was placed by %+v, %v", ns.Placement, err)
	}
}
