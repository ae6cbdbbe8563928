package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// A region that a database knows nothing of is refused by whom it must know, before anything is
// made of it there.
func TestOpenARegionThatMustExist(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{Region: "eu"})
	known := Options{MaintainEvery: -1, MustExist: true}
	refused := func(says ...string) {
		t.Helper()
		known.Region = ""
		before := namesOf(t, dsn, "local")
		s, err := Open(t.Context(), dsn, known)
		if err == nil {
			closeStore(t, s)
		}
		if !errors.Is(err, ErrNoSuchRegion) {
			t.Fatalf("opened: %v", err)
		}
		for _, part := range append(says, `"local"`) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("it does not say %q: %v", part, err)
			}
		}
		if after := namesOf(t, dsn, "local"); !slices.Equal(after, before) {
			t.Errorf("it has made %q, there were %q", after, before)
		}
	}
	refused("eu")
	known.Region = "eu" // migrated, and never served
	closeStore(t, open(t, dsn, known))
	closeStore(t, open(t, dsn, Options{Region: "us", MaintainEvery: -1})) // served, and never migrated
	known.Region = "us"
	closeStore(t, open(t, dsn, known))
	refused("eu, us")
}

// Whoever is not told that there are several regions begins none beside others, save where its tables
// were made for it.
func TestOpenARegionAlone(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{Region: "eu"})
	alone := func(region string) Options { return Options{Region: region, Alone: true, MaintainEvery: -1} }
	closeStore(t, open(t, dsn, alone("eu")))
	before := namesOf(t, dsn, "ue")
	s, err := Open(t.Context(), dsn, alone("ue"))
	if err == nil {
		closeStore(t, s)
	}
	if !errors.Is(err, ErrNoSuchRegion) || !strings.Contains(err.Error(), `"ue"`) || !strings.Contains(err.Error(), "region eu") {
		t.Errorf("a region beside another: %v", err)
	}
	if after := namesOf(t, dsn, "ue"); !slices.Equal(after, before) {
		t.Errorf("it has made %q", after)
	}
	migrateUp(t, dsn, Options{Region: "us"})
	closeStore(t, open(t, dsn, alone("us")))
}

// Who first opens a region has begun it; when that was is kept, whatever is kept beside it.
func TestARegionSaysWhenItWasBegun(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{})
	first := open(t, dsn, Options{MaintainEvery: -1})
	defer closeStore(t, first)
	at := first.MadeAt()
	if !first.Made() || time.Since(at).Abs() > time.Minute {
		t.Errorf("the first: made %v at %v", first.Made(), at)
	}
	m, err := first.Membership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := m.Clone()
	next.Region = "local"
	if err := first.SetMembership(t.Context(), m, next); err != nil {
		t.Fatal(err)
	}
	second := open(t, dsn, Options{MaintainEvery: -1})
	defer closeStore(t, second)
	if second.Made() || !second.MadeAt().Equal(at) {
		t.Errorf("the second: made %v at %v, want false at %v", second.Made(), second.MadeAt(), at)
	}
}

// namesOf is what a database has of a region: tables, and rows in those that all regions have.
func namesOf(t *testing.T, dsn, region string) []string {
	t.Helper()
	rows, err := dial(t, dsn).Query(t.Context(), `SELECT tablename::text FROM pg_tables WHERE tablename LIKE 'idem\_' || $1 || '\_%'
UNION ALL SELECT 'bucket ' || start_us FROM idem_buckets WHERE region = $1
UNION ALL SELECT 'clock' FROM idem_clock WHERE region = $1
UNION ALL SELECT 'member' FROM idem_members WHERE region = $1 ORDER BY 1`, region)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A database is restored as a whole: a recovery is one of all regions in it, each namespace says of
// which, and its floor is lifted in all of them, by who has said so.
func TestRecoveryIsOfAllRegionsInTheDatabase(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{Region: "eu"})
	eu := open(t, dsn, Options{Region: "eu", MaintainEvery: -1})
	defer closeStore(t, eu)
	alone := mustGet(t, eu, store.DefaultNamespace)
	wantEqual(t, "regions, with one", len(alone.SharedBy), 0)
	lift := store.LiftRecoveryRequest{Namespace: store.DefaultNamespace, LeasesEnded: true, NothingKnown: true, Reason: "settled"}
	begin := store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "restored"}
	if _, err := eu.BeginRecovery(t.Context(), begin); err != nil {
		t.Fatal(err)
	}
	if _, err := eu.LiftRecovery(t.Context(), lift); err != nil {
		t.Fatalf("of the only region: %v", err)
	}

	us := open(t, dsn, Options{Region: "us", MaintainEvery: -1})
	defer closeStore(t, us)
	both := []string{"eu", "us"}
	begun, err := eu.BeginRecovery(t.Context(), begin)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "regions whose recovery has begun", begun.Namespaces[0].SharedBy, both)
	created, err := us.CreateNamespace(t.Context(), store.Namespace{Name: "pay"})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "regions of one that is created", created.SharedBy, both)
	created.Lease = 7e9
	created.SharedBy = []string{"mars"} // which no caller says
	if created, err = us.UpdateNamespace(t.Context(), created); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "regions of one that is changed", created.SharedBy, both)
	for _, s := range []*Store{eu, us} {
		list, err := s.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range append(list, mustGet(t, s, store.DefaultNamespace)) {
			wantEqual(t, "regions of "+ns.Name, ns.SharedBy, both)
			wantEqual(t, "a floor stands", ns.RecoveryFloor.IsZero(), false)
		}
	}

	for _, req := range []store.LiftRecoveryRequest{lift, {Namespace: "pay", LeasesEnded: true, NothingKnown: true, Reason: "settled"}, {ForNew: true, LeasesEnded: true, NothingKnown: true, Reason: "settled"}} {
		what := fmt.Sprintf("lift %q", req.Namespace)
		_, err := eu.LiftRecovery(t.Context(), req)
		wantError(t, what, err, store.ErrNotConfirmed)
		if !strings.Contains(err.Error(), "regions eu, us") || !strings.Contains(err.Error(), "--all-regions") {
			t.Errorf("%s: it does not say which regions, or what to do: %v", what, err)
		}
		req.AllRegions = true
		ns, err := eu.LiftRecovery(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		wantEqual(t, what+": its regions", ns.SharedBy, both)
	}
	for _, name := range []string{store.DefaultNamespace, "pay"} {
		wantEqual(t, name+" has a floor in us", mustGet(t, us, name).RecoveryFloor.IsZero(), true)
	}
}

func mustGet(t *testing.T, s *Store, name string) store.Namespace {
	t.Helper()
	ns, err := s.GetNamespace(context.WithoutCancel(t.Context()), name)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// The floor and fences come from the database's clock. If that is behind this machine's, the database may be one
// that took over, with a clock behind the lost one's: nothing begins by it.
func TestNoRecoveryByAClockThatIsBehind(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	migrateUp(t, dsn, Options{})
	ahead := atomic.Int64{}
	s := open(t, dsn, Options{MaintainEvery: -1, Wall: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	defer closeStore(t, s)
	begin := store.BeginRecoveryRequest{CompleteUntil: time.Now().Add(-time.Hour), Reason: "failed over"}
	for _, test := range []struct {
		ahead   time.Duration
		refused bool
	}{{2 * store.MaxSkew, true}, {store.MaxSkew / 2, false}, {-time.Hour, false}} {
		ahead.Store(int64(test.ahead))
		_, err := s.BeginRecovery(t.Context(), begin)
		stands := !mustGet(t, s, store.DefaultNamespace).RecoveryFloor.IsZero()
		switch {
		case test.refused:
			wantError(t, test.ahead.String(), err, store.ErrUnavailable)
			if !strings.Contains(err.Error(), "2m0s behind") || stands {
				t.Errorf("a floor stands: %v; it says %v", stands, err)
			}
		case err != nil || !stands:
			t.Errorf("with a clock that is ahead by %v: %v, a floor stands: %v", test.ahead, err, stands)
		}
	}
}
