package sqlstore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// target is where a grant goes and under which guards.
type target struct {
	*plan
	lo, hi int64 // the statement may act from lo until before hi
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
	if err := snap.check(now); err != nil {
		return target{}, err
	}
	window := s.opts.Timing.window().Microseconds()
	t := target{plan: snap.plan(home), lo: home.start + window, hi: min(home.end(), snap.until())}
	barred := s.clock.barred()
	switch {
	case barred < home.previous().start:
		return target{}, errOldCopy // reading it tells the database the time
	case now >= t.lo && sealed >= t.lo && barred >= home.start:
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

// errOldCopy says that the catalog must be read anew before anything is done by it.
var errOldCopy = errors.New("the copy of the registry and the namespaces is old")

// until is when, by the database's clock, nothing is done by this copy any more: the clock of a
// machine that slept may not have counted that.
func (s *snapshot) until() int64 { return s.now + copyLag.Microseconds() }

// check refuses to act on a copy that is too old.
func (s *snapshot) check(now int64) error {
	if now >= s.until() && !seeded("old-copy") {
		return errOldCopy
	}
	return nil
}

// provided refuses when a bucket is missing in which the key must go or may be.
func (s *Store) provided(snap *snapshot, home bucketID, now int64) error {
	timing := s.opts.Timing
	soon := now + (timing.MaxStatement + timing.MaxOffset).Microseconds()
	for _, b := range []bucketID{home, bucketAt(home.tier, soon)} {
		if !slices.Contains(snap.buckets[home.tier], b) {
			s.catalog.kick()
			return &store.Error{
				Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Cause: errNoBucket,
				Detail: fmt.Sprintf("the bucket from %s for retentions up to %v does not exist yet; maintenance makes it: if this goes on, see its log",
					timeOf(b.start).Format(time.RFC3339), b.tier.MaxRetention()),
			}
		}
	}
	return nil
}
