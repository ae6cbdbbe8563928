package pebblestore

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
)

// mustSettle claims and completes a key.
func mustSettle(t *testing.T, s *Store, id string) {
	t.Helper()
	_, err := s.Complete(t.Context(), store.CompleteRequest{
		Key: testClaim(id, "").Key, AttemptID: "a", Fence: mustClaim(t, s, id, "a").Fence,
		Outcome: &store.Outcome{Body: []byte(id)},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// repeated says whether a Claim of the key is answered without the loop.
func repeated(t *testing.T, s *Store, id string) bool {
	t.Helper()
	req := testClaim(id, "b")
	done, err := s.repeat(&req.Key, req.Key.Digest(), func(old *store.Record, ns *store.Namespace, now time.Time) (store.Change, error) {
		_, change, err := store.DecideClaim(old, ns, req, now, now)
		return change, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// No answer is derived from the settings of a namespace that a crash could still take back.
func TestRepeatWaitsForTheNamespaceToBeSynced(t *testing.T) {
	letGo := make(chan struct{})
	var toggle errorfs.Toggle
	toggle.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && op.Kind != errorfs.OpFileWrite {
			<-letGo
		}
		return nil
	})
	s := mustOpen(t, testOptions(errorfs.Wrap(vfs.NewCrashableMem(), &toggle)))
	mustSettle(t, s, "k")
	if !repeated(t, s, "k") {
		t.Fatal("a settled key is not answered without the loop")
	}
	toggle.On()
	before, updated := s.known.load().seq, make(chan error)
	go func() {
		_, err := s.UpdateNamespace(t.Context(), store.Namespace{Name: store.DefaultNamespace, Retention: 2 * time.Hour})
		updated <- err
	}()
	for s.known.load().seq == before {
		runtime.Gosched()
	}
	if repeated(t, s, "k") {
		t.Error("an answer was derived from a namespace that is not synced")
	}
	close(letGo)
	if err := <-updated; err != nil {
		t.Fatal(err)
	}
	if !repeated(t, s, "k") {
		t.Error("once it is synced, the key is still not answered without the loop")
	}
}

// A store that has stopped answers nothing, what it has in memory included.
func TestStoppedStoreRepeatsNothing(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	mustSettle(t, s, "k")
	s.fail(errDisk)
	if answer, err := s.Claim(t.Context(), testClaim("k", "b")); !errors.Is(err, store.ErrUnavailable) || answer.Completed != nil {
		t.Errorf("Claim: %+v, %v; want ErrUnavailable", answer, err)
	}
	if repeated(t, s, "k") {
		t.Error("a settled key is still answered without the loop")
	}
}

// What was decided before the store stopped, and was not answered yet, is not any more.
func TestStoppedStoreAnswersNoCommit(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	o, late := &op{done: make(chan struct{}, 1)}, completedRow()
	s.fail(errDisk)
	s.answer(&turn{settled: []settledRow{{digest: digestOf(1), row: late}}}, []*op{o})
	if len(o.done) > 0 {
		t.Error("an operation was answered")
	}
	if s.settled.get(digestOf(1)) != nil {
		t.Error("a row counts as settled")
	}
}

// Who reads Pebble when it gives up may wait for a lock that it keeps.
func TestStoppedStoreLetsReadersGo(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	reads, stuck := make(chan struct{}), make(chan struct{})
	defer close(stuck)
	answer := make(chan error)
	go func() {
		_, err := past(s, func() (int, error) {
			close(reads)
			<-stuck
			return 0, nil
		})
		answer <- err
	}()
	<-reads
	s.fail(errDisk)
	if err := <-answer; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if err := s.Close(); !errors.Is(err, errDisk) {
		t.Errorf("Close: %v, want the failure", err)
	}
}

// Memory for records is bounded, however many there are.
func TestCachesAreBounded(t *testing.T) {
	const keys = 400
	opts := testOptions(vfs.NewCrashableMem())
	opts.CacheBytes = 200 * rowBytes(completedRow())
	s := mustOpen(t, opts)
	for i := range keys {
		mustSettle(t, s, fmt.Sprint(i))
	}
	err := s.do(t.Context(), classSettle, "", 0, func(turn *turn) error {
		if c := turn.l.cache; c.size > opts.CacheBytes/2 || c.size == 0 || c.size != sizeOf(c) {
			t.Errorf("the loop's cache has %d bytes of %d, its rows %d", c.size, opts.CacheBytes/2, sizeOf(c))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for i := range s.settled.shards {
		size += s.settled.shards[i].cache.size
	}
	if size > opts.CacheBytes/2 || size == 0 {
		t.Errorf("settled rows take %d bytes of %d", size, opts.CacheBytes/2)
	}
}
