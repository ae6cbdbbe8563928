package sqlstore

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

func TestNamespaceCreatedByTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	replicas := []*Store{r.replica(), r.replica()}
	const each = 4
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		won   = map[time.Duration]int{}
		other []error
	)
	for i := range each * len(replicas) {
		lease := time.Duration(10+i/2) * time.Second // two of each
		all.Go(func() {
			ns, err := replicas[i%2].CreateNamespace(t.Context(), store.Namespace{Name: "ours", Retention: time.Hour, Lease: lease})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				other = append(other, err)
				return
			}
			won[ns.Lease]++
		})
	}
	all.Wait()
	wantEqual(t, "settings that won", len(won), 1)
	for _, n := range won {
		wantEqual(t, "creators who got what they asked for", n, 2)
	}
	for _, err := range other {
		wantError(t, "the others", err, store.ErrNamespaceExists)
	}
	for _, s := range replicas {
		ns, err := s.GetNamespace(t.Context(), "ours")
		r.must(err)
		wantEqual(t, "settings", won[ns.Lease], 2)
	}
}

func TestNamespacesAsStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	floor := time.Date(2025, 1, 2, 3, 4, 5, 678, time.UTC)
	want := store.Namespace{
		Name: "all", Tier: store.TierWeek, Retention: 90 * time.Hour, LapsePolicy: store.Hold, Lease: 11 * time.Second, MaxLease: 12 * time.Minute,
		MaxAttempt: 3 * time.Hour, MaxOutcomeBytes: 2048, Entity: store.EntityRequired, RecoveryFloor: floor,
	}
	created, err := s.CreateNamespace(t.Context(), want)
	r.must(err)
	again, err := s.CreateNamespace(t.Context(), want)
	r.must(err)
	wantEqual(t, "created again", again, created)
	want.RecoveryFloor = floor.Truncate(time.Microsecond)
	want.CreatedAt, want.UpdatedAt = timeOf(began), timeOf(began)
	wantEqual(t, "created", created, want)
	got, err := r.replica().GetNamespace(t.Context(), "all")
	r.must(err)
	wantEqual(t, "read", got, want)
	list, err := s.ListNamespaces(t.Context())
	r.must(err)
	wantEqual(t, "listed", []string{list[0].Name, list[1].Name}, []string{"all", store.DefaultNamespace})
	_, err = s.UpdateNamespace(t.Context(), store.Namespace{Name: "none"})
	wantError(t, "update of one that does not exist", err, store.ErrNamespaceUnknown)
	_, err = s.GetNamespace(t.Context(), "none")
	wantError(t, "and it does not exist now", err, store.ErrNamespaceUnknown)
	_, err = s.CreateNamespace(t.Context(), store.Namespace{Name: "Bad"})
	wantError(t, "bad name", err, store.ErrInvalidArgument)

	// What is returned is the caller's.
	got.PastRetentions = append(got.PastRetentions, store.PastRetention{})
	again, err = s.GetNamespace(t.Context(), "all")
	r.must(err)
	wantEqual(t, "read again", again, want)
}

// When retention grows, a replica that has not heard of it still grants under the old one,
// and a repeat of such an intent after that is not taken for new by anybody.
func TestRetentionGrowsUnderAnotherReplica(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	a, b := r.replica(), r.replica()
	ns := store.Namespace{Name: "short", Tier: store.TierHour, Retention: time.Minute}
	_, err := a.CreateNamespace(t.Context(), ns)
	r.must(err)
	r.must(b.catalog.refresh(t.Context()))
	ns.Retention = time.Hour
	updated, err := a.UpdateNamespace(t.Context(), ns)
	r.must(err)
	wantEqual(t, "past", updated.PastRetentions, []store.PastRetention{{Retention: time.Minute, Until: timeOf(began).Add(copyLag)}})

	r.advance(maxCatalogAge)
	key := store.Key{Namespace: "short", ID: "k"}
	claim := store.ClaimRequest{Key: key, AttemptID: "a", IntentTime: r.now()}
	fence := r.grant(b, claim) // by a copy of before
	_, err = b.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{}})
	r.must(err)
	r.advance(time.Minute)
	for _, s := range []*Store{a, b} {
		r.catchUp(s)
		_, err := s.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "later", IntentTime: claim.IntentTime})
		wantError(t, "a repeat after the retention it was granted with", err, store.ErrKeyExpired)
	}
}

func TestClosedStoreRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.must(s.Close())
	_, create := s.CreateNamespace(t.Context(), store.Namespace{Name: "n"})
	_, update := s.UpdateNamespace(t.Context(), store.Namespace{Name: "n"})
	_, get := s.GetNamespace(t.Context(), "n")
	_, list := s.ListNamespaces(t.Context())
	_, buckets := s.Buckets(t.Context())
	_, maintain := s.Maintain(t.Context())
	_, records := s.ListRecords(t.Context(), store.ListRequest{Namespace: store.DefaultNamespace})
	_, inspect := s.InspectRecord(t.Context(), store.Key{Namespace: store.DefaultNamespace, ID: "k"})
	for i, err := range []error{create, update, get, list, buckets, maintain, records, inspect} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("operation %d on a closed store: %v", i, err)
		}
	}
}

// A namespace whose settings are damaged is refused by itself.
func TestDamagedNamespace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	observer := &damageObserver{}
	r.opts.Observer = observer
	r.migrate()
	s := r.replica()
	r.exec(`INSERT INTO idem_namespaces (name, settings) VALUES ('broken', '\xffff')`)
	r.exec("INSERT INTO idem_namespaces (name, settings) SELECT 'swapped', settings FROM idem_namespaces WHERE name = 'default'")
	for range 2 {
		r.must(s.catalog.refresh(t.Context()))
	}
	wantEqual(t, "reported", observer.damaged, 2)
	for _, name := range []string{"broken", "swapped"} {
		_, get := s.GetNamespace(t.Context(), name)
		_, create := s.CreateNamespace(t.Context(), store.Namespace{Name: name})
		_, update := s.UpdateNamespace(t.Context(), store.Namespace{Name: name, Retention: time.Hour})
		_, claim := s.Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: name, ID: "k"}, AttemptID: "a"})
		for i, err := range []error{get, create, update, claim} {
			wantError(t, fmt.Sprintf("%s, operation %d", name, i), err, store.ErrRecordCorrupt)
		}
	}
	list, err := s.ListNamespaces(t.Context())
	r.must(err)
	wantEqual(t, "listed", len(list), 1)
	r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: "k"}, AttemptID: "a"})
}
