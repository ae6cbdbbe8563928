package sqlstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

const (
	// maintenanceTier is the tier of the key that lets one replica at a time retire buckets.
	maintenanceTier = store.TierHour
	// maintenanceLease is how long the others wait after a replica died: retiring a bucket is
	// in no hurry. A run that takes longer goes on; another may then begin beside it.
	maintenanceLease = store.MaxLease
)

func (s *Store) keeper() *keeper { return newKeeper(s.opts, s.pool, s.dialect, s.clock, s.catalog) }

// provide makes the buckets that are missing, and seals what is to be sealed if no transaction
// is in the way: what an open does before the first operation, and the background later.
func (s *Store) provide(ctx context.Context) error {
	failed := s.keeper().createAhead(ctx)
	bounded, cancel := context.WithTimeout(ctx, s.opts.Timing.MaxStatement)
	defer cancel()
	for {
		pending, err := s.seal.advance(bounded)
		if err != nil && bounded.Err() == nil {
			failed = errors.Join(failed, err)
		}
		if !pending || err != nil {
			return failed
		}
		pause(bounded, sealPoll/20)
	}
}

// start begins the background work. What maintains the buckets ends with Close, before the
// store refuses operations: it releases its key then. The rest ends with s.ending.
func (s *Store) start() {
	kicked := make(chan struct{}, 1)
	s.catalog.onKick = func() {
		select {
		case kicked <- struct{}{}:
		default:
		}
	}
	s.background.Go(func() { s.catalog.run(s.ending) })
	if s.dialect.needsSeal() {
		s.background.Go(func() { s.seal.run(s.ending) })
	}
	if s.opts.MaintainEvery < 0 {
		return
	}
	var ctx context.Context
	ctx, s.endMaintaining = context.WithCancel(s.ending)
	// Apart: a retirement may take long, or hang, and buckets must be made meanwhile.
	s.maintaining.Go(func() { s.repeat(ctx, kicked, s.provideNext) })
	s.maintaining.Go(func() { s.repeat(ctx, nil, s.retireNext) })
}

// stopMaintaining ends what start has begun to maintain the buckets.
func (s *Store) stopMaintaining() {
	if s.endMaintaining != nil {
		s.endMaintaining()
	}
	s.maintaining.Wait()
}

// repeat runs f from time to time, and when kicked, until ctx ends.
func (s *Store) repeat(ctx context.Context, kicked <-chan struct{}, f func(context.Context) error) {
	ticker := time.NewTicker(s.opts.MaintainEvery)
	defer ticker.Stop()
	for {
		err := f(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.opts.Logger.Error("maintenance failed; it will be tried again", "error", causeOf(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-kicked:
			pause(ctx, time.Second)
		}
	}
}

// provideNext makes the buckets that are missing, and says whether a table is that should be
// there.
func (s *Store) provideNext(ctx context.Context) error {
	failed := s.keeper().createAhead(ctx)
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	snap, err := s.catalog.current(bounded)
	if err == nil {
		err = s.checkTables(bounded, snap)
	}
	return errors.Join(failed, err)
}

// retireNext retires and drops what is due.
func (s *Store) retireNext(ctx context.Context) error {
	report, err := s.retirement(ctx)
	for _, b := range report.Dropped {
		s.opts.Logger.Info("bucket retired", "retention_up_to", b.Tier.MaxRetention(), "start", b.Start, "end", b.End, "moved", report.Moved)
	}
	return err
}

// Buckets implements [store.Maintainer].
func (s *Store) Buckets(ctx context.Context) ([]store.Bucket, error) {
	snap, err := s.reread(ctx)
	if err != nil {
		return nil, err
	}
	var list []store.Bucket
	for _, tier := range store.Tiers {
		for _, id := range snap.buckets[tier] {
			list = append(list, id.describe())
		}
	}
	return list, nil
}

// Health says what an operator should look at although the database answers: operations fail
// all the same, a bucket that claims will need next does not exist, the table of one is gone
// or lacks a column, one cannot be dropped, or the clocks disagree.
func (s *Store) Health(ctx context.Context) error {
	snap, err := s.catalog.current(ctx)
	if err != nil {
		return err
	}
	gone, incomplete := known(s.checkTables(ctx, snap)), known(s.keeper().incomplete(ctx, snap))
	return errors.Join(s.troubles.health(time.Now(), s.commitHint()), gone, s.keeper().missing(snap), incomplete, s.kept.health(s.opts.Region), s.clock.suspect())
}

// known is what is known to be wrong: not that the database could not be asked.
func known(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return nil
	}
	return err
}

// Maintain implements [store.Maintainer]. It makes the buckets that are missing, and retires
// those in which nothing can be live any more: it moves what still is, and no replica looks
// into them from then on. The table is dropped by a later run, when no replica's copy of the
// registry has the bucket any more. While another replica retires buckets it leaves that to it.
func (s *Store) Maintain(ctx context.Context) (store.Maintenance, error) {
	if _, err := s.reread(ctx); err != nil {
		return store.Maintenance{}, err
	}
	failed := s.provideNext(ctx)
	report, err := s.retirement(ctx)
	return report, errors.Join(failed, err)
}

// retirement retires and drops what is due, unless another replica does or the time is not to
// be trusted.
func (s *Store) retirement(ctx context.Context) (report store.Maintenance, err error) {
	snap, err := s.reread(ctx)
	if err != nil {
		return report, err
	}
	if s.clockSuspect() {
		return report, nil
	}
	s.kept.among(snap.buckets)
	due := s.due(snap)
	retired, err := s.retired(ctx)
	if err != nil || len(due)+len(retired) == 0 {
		return report, err
	}
	release, ok, err := s.lockMaintenance(ctx)
	if err != nil || !ok {
		return report, err
	}
	defer release()
	failed := define(ctx, s.pool, bucketTimeout, func(d definer) error {
		return errors.Join(s.retireAll(ctx, d, due, &report), s.dropAll(ctx, d, retired))
	})
	if len(report.Dropped) > 0 {
		failed = errors.Join(failed, s.catalog.refresh(ctx))
	}
	return report, failed
}

// due are the open buckets in which nothing can be live any more but what is to be moved,
// without those kept for now. A statement that began before that has ended by then.
func (s *Store) due(snap *snapshot) (due []bucketID) {
	now := snap.now - s.opts.Timing.window().Microseconds()
	for _, tier := range store.Tiers {
		for _, id := range snap.buckets[tier] {
			if id.dropAfter() <= now && !s.kept.now(id, snap.now) {
				due = append(due, id)
			}
		}
	}
	return due
}

// retired are the retired buckets that no replica's copy has any more.
func (s *Store) retired(ctx context.Context) ([]bucketID, error) {
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	rows, err := s.pool.Query(bounded, fmt.Sprintf(`SELECT tier, start_us FROM idem_buckets
WHERE region = $1 AND state = %d AND changed_us + $2::int8 <= %s ORDER BY tier, start_us`, bucketRetired, us(s.opts.Clock.Now)),
		s.opts.Region, copyLag.Microseconds())
	if err != nil {
		return nil, unavailable(err)
	}
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (bucketID, error) {
		var (
			tier int16
			id   bucketID
		)
		err := row.Scan(&tier, &id.start)
		id.tier = store.Tier(tier)
		return id, err
	})
	if err != nil {
		return nil, unavailable(err)
	}
	return ids, nil
}

// lockMaintenance claims the key of maintenance. Ok is false while another has it. What runs
// under it is safe without it too: it only saves the replicas from doing it all at once.
func (s *Store) lockMaintenance(ctx context.Context) (release func(), ok bool, err error) {
	ns := store.Namespace{
		Name: "_idemd", Tier: maintenanceTier, Retention: store.MinRetention, Lease: maintenanceLease,
	}.WithDefaults()
	key := store.Key{Namespace: ns.Name, ID: "maintenance/" + s.opts.Region}
	attempt := rand.Text()
	answer, err := s.claimIn(ctx, &ns, store.ClaimRequest{Key: key, AttemptID: attempt})
	if err != nil || answer.Granted == nil {
		return nil, false, err
	}
	return func() {
		ending, cancel := detached(ctx, s.opts.Timing.MaxStatement)
		defer cancel()
		err := s.releaseIn(ending, &ns, store.ReleaseRequest{
			Key: key, AttemptID: attempt, Fence: answer.Granted.Fence, Effect: store.EffectNone,
		})
		if err != nil {
			s.opts.Logger.Warn("the key of maintenance was not released; it lapses", "error", err)
		}
	}, true, nil
}

// releaseIn releases a key of a namespace that need not be a stored one.
func (s *Store) releaseIn(ctx context.Context, ns *store.Namespace, req store.ReleaseRequest) error {
	t := newTask(req.Key, ns, math.MaxInt64)
	t.decide = func(old *store.Record, now, _ time.Time) (store.Change, error) {
		_, change, err := store.DecideRelease(old, ns, req, now)
		return change, err
	}
	return s.perform(ctx, t)
}
