package sqlstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// target is where a grant goes and under which guards.
type target struct {
	*plan
	lo     int64 // the earliest time at which the statement may act
	marked bool  // a marker goes into the previous bucket: the window is open (3)
}

// target chooses the statement for a grant at now. Where that is only an estimate of the
// database's clock, a wrong one costs another try and nothing else, because the statement
// checks the time. Sealed is what the seal said before the statement's snapshot was taken.
func (s *Store) target(snap *snapshot, tier store.Tier, now, sealed int64) (target, error) {
	home := bucketAt(tier, now)
	if err := s.provided(snap, home, now); err != nil {
		return target{}, err
	}
	window := s.opts.Timing.window().Microseconds()
	t := target{plan: snap.plan(home), lo: home.start + window}
	switch {
	case now >= t.lo && sealed >= t.lo:
	case sealed >= home.previous().start+window:
		t.lo, t.marked = home.start, t.marker != ""
	default:
		s.catalog.kick() // it may be this replica's idea of the time that is wrong
		return target{}, &store.Error{
			Sentinel: store.ErrUnavailable, RetryAfter: time.Second,
			Detail: fmt.Sprintf("the database still runs a transaction from before %s; until it ends nothing can be granted safely: end it (pg_stat_activity shows it)",
				timeOf(home.previous().start+window).Format(time.RFC3339)),
		}
	}
	t.lo = max(t.lo, s.clock.floor())
	return t, nil
}

// provided refuses when a bucket is missing in which the key must go or may be.
func (s *Store) provided(snap *snapshot, home bucketID, now int64) error {
	timing := s.opts.Timing
	soon := now + (timing.MaxStatement + timing.MaxOffset).Microseconds()
	for _, b := range []bucketID{home, bucketAt(home.tier, soon)} {
		if !slices.Contains(snap.buckets[home.tier], b) {
			s.catalog.kick()
			return &store.Error{
				Sentinel: store.ErrUnavailable, RetryAfter: time.Second,
				Detail: fmt.Sprintf("the bucket from %s for retentions up to %v does not exist yet; maintenance makes it: if this goes on, see its log",
					timeOf(b.start).Format(time.RFC3339), b.tier.MaxRetention()),
			}
		}
	}
	return nil
}
