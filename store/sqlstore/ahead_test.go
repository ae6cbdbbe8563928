package sqlstore

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// registered are the starts of the registered buckets of a tier, in widths from that of began.
func (r *rig) registered(tier store.Tier) []int64 {
	r.t.Helper()
	home := bucketAt(tier, began)
	return read[[]int64](r, "SELECT coalesce(array_agg((start_us - $1) / $2 ORDER BY start_us), '{}') FROM idem_buckets WHERE tier = $3",
		home.start, home.width(), int16(tier))
}

// What may be added to the registry: never a bucket behind a newer one that some replica may
// know while it does not know the older one, as long as anything can be granted into that.
func TestRegister(t *testing.T) {
	t.Parallel()
	home := bucketAt(store.TierHour, began)
	nth := func(n int64) bucketID { return bucketID{home.tier, home.start + n*home.width()} }
	for _, c := range []struct {
		name         string
		there, asked []int64
		now, want    string // now: time from the start of bucket 0
	}{
		{"the first", nil, []int64{0, 1, 2}, "14m59s", "[0 1 2]"},
		{"ahead", []int64{0, 1}, []int64{2}, "14m59s", "[0 1 2]"},
		{"current and late", []int64{-1}, []int64{0, 1, 2}, "0s", "[-1 0 1 2]"},
		{"current and late, almost over", []int64{-1}, []int64{0, 1}, "14m59s", "[-1 0 1]"},
		{"a gap that lasts", []int64{1}, []int64{0, 2}, "14m40s", "[0 1 2]"},
		{"a gap that is over before all know it", []int64{1}, []int64{0, 2}, "14m41s", "[1 2]"},
		{"past", []int64{-2}, []int64{-1, 0}, "1s", "[-2 0]"},
		{"there already", []int64{0}, []int64{0}, "1s", "[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.migrate()
			s := r.replica()
			r.exec("DELETE FROM idem_buckets")
			for _, n := range c.there {
				r.exec("INSERT INTO idem_buckets VALUES ('local', $1, $2, 1, 0)", int16(home.tier), nth(n).start)
			}
			past, err := time.ParseDuration(c.now)
			r.must(err)
			r.set(home.start + past.Microseconds())
			var asked []bucketID
			for _, n := range c.asked {
				asked = append(asked, nth(n))
			}
			r.must(s.keeper().register(t.Context(), asked))
			wantEqual(t, "registered", r.registered(home.tier), c.want)
		})
	}
}

type countingObserver struct {
	noObserver
	ahead []int
}

func (o *countingObserver) BucketsAhead(n int) { o.ahead = append(o.ahead, n) }

func TestBucketsAreMadeAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	observer := &countingObserver{}
	r.opts.Observer = observer
	r.migrate()
	s := r.replica()
	wantEqual(t, "hours", r.registered(store.TierHour), "[0 1 2]")
	wantEqual(t, "days", r.registered(store.TierDay), "[0 1 2]")
	wantEqual(t, "weeks, which nobody uses", r.registered(store.TierWeek), "[]")

	r.advance(15 * time.Minute)
	r.must(s.catalog.refresh(t.Context()))
	r.must(s.Health(t.Context()))
	r.catchUp(s)
	wantEqual(t, "hours after one", r.registered(store.TierHour), "[0 1 2 3]")
	r.advance(100 * time.Hour) // as after a long outage
	r.must(s.catalog.refresh(t.Context()))
	err := s.Health(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no bucket idem_local_hour_") || !strings.Contains(err.Error(), "idem_local_day_") {
		t.Errorf("health without the buckets: %v", err)
	}
	r.catchUp(s)
	r.must(s.Health(t.Context()))
	wantEqual(t, "hours after an outage", r.registered(store.TierHour), "[0 1 2 3 401 402 403]")
	wantEqual(t, "observed", observer.ahead[len(observer.ahead)-1], bucketsAhead)
}

// What cannot be made is told, and does not keep other tiers from theirs.
func TestBucketThatCannotBeMade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	observer := &countingObserver{}
	r.opts.Observer = observer
	r.migrate()
	s := r.replica()
	home := bucketAt(store.TierHour, began)
	r.exec("CREATE TYPE " + bucketID{home.tier, home.start + 5*home.width()}.table("local") + " AS ENUM ()")
	r.exec("DELETE FROM idem_buckets WHERE tier = $1", int16(store.TierDay))
	r.set(home.start + 4*home.width())
	r.must(s.catalog.refresh(t.Context()))
	err := s.keeper().createAhead(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "no bucket idem_local_hour_") {
		t.Fatalf("the next bucket cannot be made: %v", err)
	}
	wantEqual(t, "days", r.registered(store.TierDay), "[0 1 2]")
	wantEqual(t, "ahead", observer.ahead[len(observer.ahead)-1], 0)
}

func TestReplicasMakeBucketsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	replicas := make([]*Store, 4)
	for i := range replicas {
		replicas[i] = r.replica()
	}
	r.advance(50 * time.Hour)
	var all sync.WaitGroup
	errs := make([]error, len(replicas))
	for i, s := range replicas {
		r.must(s.catalog.refresh(t.Context()))
		all.Go(func() { errs[i] = s.keeper().createAhead(t.Context()) })
	}
	all.Wait()
	for _, err := range errs {
		r.must(err)
	}
	wantEqual(t, "hours", r.registered(store.TierHour), "[0 1 2 200 201 202]")
	for i, s := range replicas {
		r.catchUp(s)
		r.grant(s, store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprint(i)}, AttemptID: "a"})
	}
}

// Making buckets does not need any of the connections that operations use.
func TestBucketsAreMadeWithAllConnectionsBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.MaxConns = 1
	r.migrate()
	s := r.replica()
	busy, err := s.pool.Acquire(t.Context())
	r.must(err)
	defer busy.Release()
	home := bucketAt(store.TierWeek, began)
	r.must(s.keeper().createTables(t.Context(), []bucketID{home}))
	wantEqual(t, "table", read[bool](r, "SELECT to_regclass($1) IS NOT NULL", home.table("local")), true)
}
