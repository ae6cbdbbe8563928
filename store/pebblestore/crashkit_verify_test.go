package pebblestore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// verifyAll verifies crashes on as many goroutines as there are processors to use.
func verifyAll(t *testing.T, crashes []crash) {
	t.Helper()
	work := make(chan crash)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for c := range work {
				if !t.Failed() {
					c.verify(t)
				}
			}
		})
	}
	for _, c := range crashes {
		work <- c
	}
	close(work)
	wg.Wait()
}

// verify opens a store on what a crash left and checks it against all that was answered
// before.
func (c crash) verify(t testing.TB) {
	t.Helper()
	c.verifyOn(t, c.fs, func(*history) {})
}

// verifyOn is verify on a file system that stands for the crash's own. It hands out the
// history of its calls before it makes them, and returns it.
func (c crash) verifyOn(t testing.TB, fs vfs.FS, record func(*history)) *history {
	t.Helper()
	fatal := newFatals()
	s, err := pebblestore.Open(dataDir, openOptions(fs, clockAt(c.wall), fatal))
	if err != nil {
		t.Errorf("%s: open after it: %v", c.where, err)
		return nil
	}
	now := storeNow(t, s)
	if now.Before(c.history.now) {
		t.Errorf("%s: the clock went back from %v to %v", c.where, c.history.now, now)
	}
	h := c.history.crashed(c.cut, now)
	record(h)
	h.probe(t, s)
	h.check(t, c.where)
	c.verifyNamespaces(t, s)
	if err := s.Close(); err != nil {
		t.Errorf("%s: close: %v", c.where, err)
	}
	if errs := fatal.all(); len(errs) > 0 {
		t.Errorf("%s: fatal error after it: %v", c.where, errs)
	}
	return h
}

// probe reads every key and then makes the calls that would show a lost grant: a Claim
// by the attempt that is stored, and one by an attempt nobody has seen.
func (h *history) probe(t testing.TB, b store.Backend) {
	for _, key := range h.keys {
		for _, claim := range h.probes(t, b, key) {
			h.send(t.Context(), b, 0, claim)
		}
		h.send(t.Context(), b, 0, inspectRequest{key})
	}
}

func (h *history) probes(t testing.TB, b store.Backend, key store.Key) []any {
	inspection, err := b.InspectRecord(t.Context(), key)
	h.observe(key, render(row{inspection.Record, inspection.Events}, err))
	probes := []any{
		store.LookupRequest{Key: key, Fingerprint: fingerprintOf(key)},
		store.ClaimRequest{Key: key, AttemptID: "newcomer after the crash", Fingerprint: fingerprintOf(key)},
	}
	if err == nil && inspection.Record.AttemptID != "" {
		again := store.ClaimRequest{Key: key, AttemptID: inspection.Record.AttemptID, Fingerprint: fingerprintOf(key)}
		probes = append([]any{again}, probes...)
	}
	return probes
}

// verifyNamespaces checks that namespaces known before the crash are as they were.
func (c crash) verifyNamespaces(t testing.TB, b store.Backend) {
	t.Helper()
	got := namespacesOf(t, b)
	for name, want := range c.history.namespaces {
		if !sameNamespace(got[name], want) {
			t.Errorf("%s: namespace %q is %+v, want %+v", c.where, name, got[name], want)
		}
	}
}

func sameNamespace(a, b *store.Namespace) bool {
	return a != nil && render(a, nil) == render(b, nil)
}

// hangGuard ends the test binary if a part of a test never returns, and says which.
func hangGuard(t testing.TB, limit time.Duration, what func() string) {
	timer := time.AfterFunc(limit, func() { panic(t.Name() + " hangs: " + what()) })
	t.Cleanup(func() { timer.Stop() })
}
