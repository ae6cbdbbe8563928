package sqlstore

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

type damageObserver struct {
	noObserver
	damaged int
}

func (o *damageObserver) Damaged(error) { o.damaged++ }

// list walks through a listing and returns the ids in it, sorted, and how many pages it took.
func (r *rig) list(s *Store, req store.ListRequest) (ids []string, pages int) {
	r.t.Helper()
	for {
		page, err := s.ListRecords(r.t.Context(), req)
		r.must(err)
		wantEqual(r.t, "time of a page", page.Now, r.now())
		pages++
		for _, rec := range page.Records {
			if rec.Outcome != nil || (rec.State == store.StateCompleted) != (rec.OutcomeDigest != store.OutcomeDigest{}) {
				r.t.Errorf("listed: %+v", rec)
			}
			ids = append(ids, rec.Key.ID)
		}
		if page.NextPageToken == "" {
			slices.Sort(ids)
			return ids, pages
		}
		if !regexp.MustCompile("^[0-9a-f]+$").MatchString(page.NextPageToken) {
			r.t.Errorf("page token %q", page.NextPageToken)
		}
		req.PageToken = page.NextPageToken
	}
}

func TestListRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	observer := &damageObserver{}
	r.opts.Observer = observer
	r.migrate()
	s := r.replica()
	for _, name := range []string{"hours", "hour", "hours2"} { // prefixes of each other
		_, err := s.CreateNamespace(t.Context(), store.Namespace{Name: name, Retention: time.Hour})
		r.must(err)
	}
	key := func(id string) store.Key { return store.Key{Namespace: "hours", ID: id} }
	r.complete(s, key("completed"), "a")
	for range 3 {
		for i := range 3 {
			id := fmt.Sprintf("%s-%d", r.now().Format("1504"), i)
			r.grant(s, store.ClaimRequest{Key: key(id), AttemptID: "a", Lease: time.Minute})
			r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: "hour", ID: id}, AttemptID: "a"})
			r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: "hours2", ID: id}, AttemptID: "a"})
		}
		r.advance(15 * time.Minute)
		r.catchUp(s)
	}
	r.grant(s, store.ClaimRequest{Key: key("running"), AttemptID: "a"})
	lapsed := []string{"1007-0", "1007-1", "1007-2", "1022-0", "1022-1", "1022-2", "1037-0", "1037-1", "1037-2"}
	all := append(slices.Clone(lapsed), "completed", "running")
	for _, c := range []struct {
		req  store.ListRequest
		want []string
	}{
		{store.ListRequest{}, all},
		{store.ListRequest{PageSize: 1}, all},
		{store.ListRequest{PageSize: 4}, all},
		{store.ListRequest{Filter: store.Filter{Lapsed: true}, PageSize: 2}, lapsed},
		{store.ListRequest{Filter: store.Filter{State: store.StateCompleted}}, []string{"completed"}},
		{store.ListRequest{Filter: store.Filter{State: store.StateInProgress}}, append(slices.Clone(lapsed), "running")},
		{store.ListRequest{Filter: store.Filter{State: store.StateReleased}}, nil},
	} {
		c.req.Namespace = "hours"
		got, pages := r.list(s, c.req)
		wantEqual(t, fmt.Sprintf("%+v", c.req), got, c.want)
		if size := c.req.PageSize; size > 0 && pages < len(c.want)/size {
			t.Errorf("%+v: %d pages", c.req, pages)
		}
	}

	// A damaged row is left out and told; what has expired is not listed.
	digest := key("1007-1").Digest()
	r.exec("UPDATE "+bucketAt(store.TierHour, began).table("local")+" SET key = key || 'x'::bytea WHERE digest = $1", digest[:])
	got, _ := r.list(s, store.ListRequest{Namespace: "hours"})
	wantEqual(t, "without the damaged one", got, slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id == "1007-1" }))
	wantEqual(t, "damage told", observer.damaged, 1)
	// But not if what is listed is to be carried to another store: it would be left behind.
	sealed := placementOf(1, 1, store.MoveSealed)
	for _, p := range []store.Placement{sealed, placementOf(1, 2, 0)} {
		if _, err := s.PlaceNamespace(t.Context(), "hours", p); err != nil {
			t.Fatal(err)
		}
		_, err := s.ListRecords(t.Context(), store.ListRequest{Namespace: "hours"})
		if errors.Is(err, store.ErrRecordCorrupt) != (p == sealed) {
			t.Errorf("a listing by %+v: %v", p, err)
		}
	}
	r.advance(16 * time.Minute)
	r.catchUp(s)
	got, _ = r.list(s, store.ListRequest{Namespace: "hours"})
	wantEqual(t, "some have expired", got, []string{"1022-0", "1022-1", "1022-2", "1037-0", "1037-1", "1037-2", "running"})

	odd := listPlace{start: 1, after: []byte{1, 2}} // a damaged row can be the last of a page
	if got := decodePlace(odd.encode()); fmt.Sprint(got) != fmt.Sprint(odd) {
		t.Errorf("the place of a damaged row: %v", got)
	}
	for _, token := range []string{"x", "00", "zz" + fmt.Sprintf("%078d", 0)} {
		_, err := s.ListRecords(t.Context(), store.ListRequest{Namespace: "hours", PageToken: token})
		wantError(t, "token "+token, err, store.ErrInvalidArgument)
	}
	_, err := s.ListRecords(t.Context(), store.ListRequest{Namespace: "none"})
	wantError(t, "a namespace that does not exist", err, store.ErrNamespaceUnknown)
}

// One call looks at a bounded number of rows, and the next goes on from there.
func TestListingIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	r.exec("INSERT INTO " + bucketAt(store.TierDay, began).table("local") +
		" (digest, state) SELECT sha256(n::text::bytea), 4 FROM generate_series(1, 12000) AS n")
	r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: "k"}, AttemptID: "a"})
	got, pages := r.list(s, store.ListRequest{Namespace: store.DefaultNamespace})
	wantEqual(t, "listed", got, []string{"k"})
	wantEqual(t, "pages", pages, 2)
}

func TestInspectRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	s := r.replica()
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	_, err := s.InspectRecord(t.Context(), key)
	wantError(t, "a key that was never claimed", err, store.ErrKeyNotFound)
	fence := r.grant(s, store.ClaimRequest{Key: key, AttemptID: "a"})
	rec, err := s.ForceRelease(t.Context(), store.ForceReleaseRequest{Key: key, Fence: fence, Actor: "me", Reason: "stuck"})
	r.must(err)
	r.complete(s, key, "b")
	inspection, err := s.InspectRecord(t.Context(), key)
	r.must(err)
	wantEqual(t, "state", inspection.Record.State, store.StateCompleted)
	wantEqual(t, "outcome", string(inspection.Record.Outcome.Body), "done")
	wantEqual(t, "time", inspection.Now, r.now())
	kinds := []store.EventKind{}
	for _, e := range inspection.Events {
		kinds = append(kinds, e.Kind)
	}
	wantEqual(t, "events", kinds, []store.EventKind{store.EventForceReleased, store.EventTakeover})
	wantEqual(t, "first event", []any{inspection.Events[0].NewFence, inspection.Events[0].Reason}, []any{rec.Fence, "stuck"})
	_, err = s.Resolve(t.Context(), store.ResolveRequest{Key: key, AnyFence: true, Actor: "me", Reason: "r"})
	wantError(t, "resolve of what is completed", err, store.ErrNotLapsed)
}
