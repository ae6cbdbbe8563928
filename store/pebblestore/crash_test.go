package pebblestore_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// seeds returns how many runs a crash test makes.
func seeds(normal uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return normal
}

// The disk is lost at every file operation of a store under load, and after every few
// answers.
func TestCrashUnderLoad(t *testing.T) {
	kinds := map[string]bool{}
	for seed := range seeds(10) {
		var crashes []crash
		inBubble(t, func(t *testing.T) { crashes = crashesUnderLoad(t, seed, kinds) })
		verifyAll(t, crashes)
		if t.Failed() {
			return
		}
		t.Logf("seed %d: %d crashes verified", seed, len(crashes))
	}
	for _, kind := range []string{".log", ".sst", "MANIFEST"} {
		if !kinds[kind] {
			t.Errorf("no crash came at an operation on a %s file: the load is too small", kind)
		}
	}
}

func crashesUnderLoad(t *testing.T, seed uint64, kinds map[string]bool) []crash {
	clock := storetest.NewClock()
	c := newCrasher(vfs.NewCrashableMem(), clock, seed, 0, 0, 50, 100)
	c.beforeEach(settleBeforeSync)
	s := mustOpen(t, c.fs(), clock)
	r := newRig(t, s, clock)
	r.onAnswer = func(n int) {
		if n%16 == 0 {
			c.crashNow("after an answer", 0)
		}
	}
	c.record(r.history) // before the first crash: the store writes by itself too
	c.crashEvery(1)
	pauses := []time.Duration{time.Millisecond, 3 * time.Second, time.Minute, 20 * time.Minute, time.Hour, 40 * time.Minute}
	for i, pause := range pauses {
		c.record(r.history)
		var maintenance sync.WaitGroup
		maintenance.Go(func() { mustMaintain(t, s) })
		r.burst(t, seed<<8+uint64(i), 6, 10)
		maintenance.Wait()
		c.crashNow("with nothing under way", 0)
		r.endRound(t)
		c.record(r.history)
		r.advance(t, pause)
	}
	c.record(r.history)
	mustClose(t, s)
	maps.Copy(kinds, c.kinds)
	return c.take()
}

// settleBeforeSync waits, in a bubble, until every goroutine is blocked: whatever answer
// can leave before the sync has then left.
func settleBeforeSync(op errorfs.Op) error {
	if isSync(op) {
		time.Sleep(time.Nanosecond)
	}
	return nil
}

// A disk lost while the store is made leaves nothing, or a store.
func TestCrashDuringFirstOpen(t *testing.T) {
	for _, percent := range []int{0, 50, 100} {
		clock := storetest.NewClock()
		c := newCrasher(vfs.NewCrashableMem(), clock, 7, 1, percent)
		h := &history{now: storetest.Start, keys: testKeys[:1], base: map[store.Key]row{}}
		c.record(h)
		s := mustOpen(t, c.fs(), clock)
		h.namespaces = namespacesOf(t, s) // a clock that stands still makes the same ones
		mustClose(t, s)
		crashes := c.take()
		if len(crashes) < 10 {
			t.Errorf("only %d crashes while a store was made", len(crashes))
		}
		verifyAll(t, crashes)
	}
}

// Of directory entries that were made since the last sync of the directory, any may be
// kept and any lost, whatever their order. Creation and recovery make several.
func TestCrashKeepsSomeDirectoryEntries(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it opens hundreds of crashed directories, one after another; 'make test' plays it")
	}
	const clones = 16
	clock := storetest.NewClock()
	c := newCrasher(vfs.NewCrashableMem(), clock, 5, 0)
	h := &history{now: storetest.Start, keys: testKeys[:1], base: map[store.Key]row{}}
	c.record(h)
	c.beforeEach(func(op errorfs.Op) error {
		if isSync(op) && path.Ext(op.Path) == "" {
			for range clones {
				c.crashNow("before a sync of "+path.Base(op.Path), 50)
			}
		}
		return nil
	})
	for range 3 {
		s := mustOpen(t, c.fs(), clock)
		h.namespaces = namespacesOf(t, s)
		mustClose(t, s)
	}
	verifyAll(t, c.take())
}

// A change of namespaces is whole or absent, and an acknowledged one is there.
func TestCrashDuringNamespaceChange(t *testing.T) {
	clock := storetest.NewClock()
	c := newCrasher(vfs.NewCrashableMem(), clock, 11, 0, 0, 50, 100)
	s := mustOpen(t, c.fs(), clock)
	c.record(&history{now: storetest.Start}) // before the first crash: the store writes by itself too
	c.crashEvery(1)
	var last store.Namespace
	for i := range 8 {
		want := store.Namespace{Name: "tenant", Retention: time.Duration(8+i) * time.Hour}
		c.record(&history{now: storetest.Start}) // calls no key
		got, err := s.CreateNamespace(t.Context(), want)
		if i > 0 {
			got, err = s.UpdateNamespace(t.Context(), want)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.crashNow("after the change", 0)
		crashes := c.take()
		for j, crash := range crashes {
			answered := j == len(crashes)-1
			verifyNamespace(t, crash, last, got, answered)
		}
		last = got
	}
	c.crashEvery(0)
	mustClose(t, s)
}

// verifyNamespace checks that a namespace is as it was before a change or, always if it
// was answered, after it.
func verifyNamespace(t *testing.T, c crash, before, after store.Namespace, answered bool) {
	t.Helper()
	s := mustOpen(t, c.fs, clockAt(c.wall))
	defer mustClose(t, s)
	got, err := s.GetNamespace(t.Context(), after.Name)
	switch {
	case err == nil && sameNamespace(&got, &after):
	case answered:
		t.Errorf("%s: namespace is %+v, %v, want %+v", c.where, got, err, after)
	case errors.Is(err, store.ErrNamespaceUnknown) && before.Name == "":
	case err == nil && sameNamespace(&got, &before):
	default:
		t.Errorf("%s: namespace is %+v, %v, want %+v or %+v", c.where, got, err, before, after)
	}
}

// The disk is lost again while the store recovers from losing it, and at the calls that
// follow.
func TestCrashDuringRecovery(t *testing.T) {
	var first []crash
	inBubble(t, func(t *testing.T) { first = crashesUnderLoad(t, 99, map[string]bool{}) })
	rng := rand.New(rand.NewPCG(99, 2))
	rng.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	nested := 0
	for i, f := range first[:min(len(first), int(seeds(10)))] {
		c := newCrasher(f.fs, clockAt(f.wall), uint64(i), 1, 0, 50, 100)
		c.record(f.history.crashed(f.cut, f.history.now))
		h := f.verifyOn(t, c.fs(), c.record)
		second := c.take()
		nested += len(second)
		if h == nil || t.Failed() {
			return
		}
		for j := range second {
			second[j].where = f.where + ", then " + second[j].where
		}
		verifyAll(t, second)
	}
	t.Logf("%d crashes of recovering stores verified", nested)
}

// The disk is lost while buckets are dropped and what is still live moves forward.
func TestCrashDuringMaintain(t *testing.T) {
	for seed := range seeds(3) {
		clock := storetest.NewClock()
		c := newCrasher(vfs.NewCrashableMem(), clock, seed, 0, 0, 50, 100)
		s := mustOpen(t, c.fs(), clock)
		r := newRig(t, s, clock)
		r.history.keys = manyKeys(60)
		for i := range 4 {
			r.round(t, seed<<8+uint64(i), 4, 100)
			r.advance(t, 11*time.Minute)
		}
		r.advance(t, 3*time.Hour)
		c.record(r.history)
		c.crashEvery(1)
		done := mustMaintain(t, s)
		mustMaintain(t, s)
		if len(done.Dropped) == 0 || done.Moved == 0 {
			t.Fatalf("maintenance did nothing worth crashing in: %+v", done)
		}
		c.crashNow("after maintenance", 0)
		r.endRound(t)
		c.crashEvery(0)
		mustClose(t, s)
		crashes := c.take()
		t.Logf("seed %d: %d buckets dropped, %d records moved, %d crashes verified", seed, len(done.Dropped), done.Moved, len(crashes))
		verifyAll(t, crashes)
	}
}

// manyKeys returns keys of a short-lived namespace in which lapses are held.
func manyKeys(n int) []store.Key {
	keys := make([]store.Key, n)
	for i := range keys {
		keys[i] = store.Key{Namespace: "hold", ID: fmt.Sprint(i)}
	}
	return keys
}

func mustOpen(t testing.TB, fs vfs.FS, clock *storetest.Clock) *pebblestore.Store {
	t.Helper()
	var fatal fatals
	s, err := pebblestore.Open(dataDir, openOptions(fs, clock, &fatal))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func mustClose(t testing.TB, s *pebblestore.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func mustMaintain(t testing.TB, s store.Maintainer) store.Maintenance {
	t.Helper()
	done, err := s.Maintain(t.Context())
	if err != nil {
		t.Errorf("maintain: %v", err)
	}
	return done
}
