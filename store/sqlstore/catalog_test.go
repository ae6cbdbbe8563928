package sqlstore

import (
	"context"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// age makes a replica's copy older by d.
func age(s *Store, d time.Duration) {
	old := *s.catalog.copy.Load()
	old.asked = old.asked.Add(-d)
	s.catalog.copy.Store(&old)
}

func TestCatalogOfTwoReplicas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	a, b := r.replica(), r.replica()
	week := store.Namespace{Name: "week", Retention: 100 * time.Hour}
	_, err := a.CreateNamespace(t.Context(), week)
	r.must(err)

	// Its own writes are in a replica's copy at once, with the buckets of the tier.
	own, err := a.catalog.current(t.Context())
	r.must(err)
	wantEqual(t, "own copy has it", own.namespaces["week"] != nil, true)
	wantEqual(t, "own buckets", len(own.buckets[store.TierWeek]), 1+bucketsAhead)

	// A name that a copy does not have is looked for before it is refused.
	stale, err := b.catalog.current(t.Context())
	r.must(err)
	wantEqual(t, "the other's copy has it", stale.namespaces["week"] != nil, false)
	_, err = b.namespace(t.Context(), "nowhere")
	wantError(t, "a namespace that does not exist", err, store.ErrNamespaceUnknown)
	r.grant(b, store.ClaimRequest{Key: store.Key{Namespace: "week", ID: "k"}, AttemptID: "a"})

	// A copy that is too old is read again before it is used.
	week.Lease = 77 * time.Second
	_, err = a.UpdateNamespace(t.Context(), week)
	r.must(err)
	for _, step := range []struct {
		age  time.Duration
		want time.Duration
	}{{maxCatalogAge - time.Second, store.DefaultLease}, {time.Second, 77 * time.Second}} {
		age(b, step.age)
		snap, err := b.catalog.current(t.Context())
		r.must(err)
		wantEqual(t, "lease", snap.namespaces["week"].Lease, step.want)
	}
}

// Without the database a copy serves as long as it may, and no longer.
func TestCatalogWithoutDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.exec("ALTER TABLE idem_buckets RENAME TO away")
	wantError(t, "refresh", s.catalog.refresh(t.Context()), store.ErrUnavailable)
	if _, err := s.catalog.current(t.Context()); err != nil {
		t.Fatal(err)
	}
	age(s, maxCatalogAge)
	_, err := s.catalog.current(t.Context())
	wantError(t, "an old copy", err, store.ErrUnavailable)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.catalog.current(gone)
	wantError(t, "a caller that has gone", err, context.Canceled)
	r.exec("ALTER TABLE away RENAME TO idem_buckets")
	if _, err := s.catalog.current(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The newest time that operations met is told to the database, and to who reads it.
func TestNewestTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	a := r.replica()
	stored := func() int64 { return read[int64](r, "SELECT newest_us FROM idem_clock WHERE region = 'local'") }
	r.must(a.catalog.tell(t.Context()))
	wantEqual(t, "told of the bucket, when nothing went on", stored(), began)
	r.advance(time.Second)
	r.must(a.catalog.refresh(t.Context()))
	r.must(a.catalog.tell(t.Context()))
	wantEqual(t, "told a second later", stored(), began)

	later := began + time.Minute.Microseconds()
	a.clock.saw(later)
	r.must(a.catalog.tell(t.Context()))
	wantEqual(t, "told after an operation", stored(), later)

	// Another replica, whose database's clock is behind, does not believe it.
	opts := a.opts
	opts.Timing.MaxOffset = 0
	b := newDBClock(opts)
	c := newCatalog(a.pool, a.texts, b, a.opts.Logger)
	r.must(c.refresh(t.Context()))
	wantEqual(t, "newest of another replica", b.newestSeen(), later)
	wantError(t, "the clock that is behind", b.check(began), store.ErrUnavailable)

	// Nothing is told twice, and nothing older.
	r.exec("UPDATE idem_clock SET newest_us = $1", later+1)
	r.must(a.catalog.tell(t.Context()))
	b.saw(later - 1)
	r.must(c.tell(t.Context()))
	a.clock.saw(later + 1)
	r.must(a.catalog.tell(t.Context()))
	wantEqual(t, "what another told", stored(), later+1)
}
