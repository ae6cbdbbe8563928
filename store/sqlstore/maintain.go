package sqlstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	// moveRows is how many live rows are moved at a stretch.
	moveRows = 64
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

// start begins the background work, which ends with s.ending.
func (s *Store) start() {
	kicked := make(chan struct{}, 1)
	s.catalog.onKick = func() {
		select {
		case kicked <- struct{}{}:
		default:
		}
	}
	s.background.Go(func() { s.catalog.run(s.ending) })
	s.background.Go(func() { s.keepMaintaining(s.ending, kicked) })
	if s.dialect.needsSeal() {
		s.background.Go(func() { s.seal.run(s.ending) })
	}
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

// Health says what an operator should look at although operations still succeed: a bucket
// that claims will need next does not exist.
func (s *Store) Health(ctx context.Context) error {
	snap, err := s.catalog.current(ctx)
	if err != nil {
		return err
	}
	return s.keeper().missing(snap)
}

// keepMaintaining runs Maintain from time to time, and when something is missing, until ctx
// ends.
func (s *Store) keepMaintaining(ctx context.Context, kicked <-chan struct{}) {
	if s.opts.MaintainEvery < 0 {
		return
	}
	ticker := time.NewTicker(s.opts.MaintainEvery)
	defer ticker.Stop()
	for {
		report, err := s.Maintain(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.opts.Logger.Error("maintenance failed; it will be tried again", "error", err)
		}
		for _, b := range report.Dropped {
			s.opts.Logger.Info("bucket retired", "retention_up_to", b.Tier.MaxRetention(), "start", b.Start, "end", b.End, "moved", report.Moved)
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

// Maintain implements [store.Maintainer]. It makes the buckets that are missing, and retires
// those in which nothing can be live any more: it moves what still is, and no replica looks
// into them from then on. The table is dropped by a later run, when no replica's copy of the
// registry has the bucket any more. While another replica retires buckets it leaves that to it.
func (s *Store) Maintain(ctx context.Context) (report store.Maintenance, err error) {
	snap, err := s.reread(ctx)
	if err != nil {
		return report, err
	}
	failed := s.keeper().createAhead(ctx)
	due := s.due(snap)
	retired, err := s.retired(ctx)
	if err != nil || len(due)+len(retired) == 0 {
		return report, errors.Join(failed, err)
	}
	release, ok, err := s.lockMaintenance(ctx)
	if err != nil || !ok {
		return report, errors.Join(failed, err)
	}
	defer release()
	err = define(ctx, s.pool, func(conn *pgx.Conn) error {
		return errors.Join(s.retireAll(ctx, conn, due, &report), s.dropAll(ctx, conn, retired))
	})
	failed = errors.Join(failed, err)
	if len(report.Dropped) > 0 {
		failed = errors.Join(failed, s.catalog.refresh(ctx))
	}
	return report, failed
}

// due are the open buckets in which nothing can be live any more but what is to be moved. A
// statement that began before that has ended by then.
func (s *Store) due(snap *snapshot) (due []bucketID) {
	now := snap.now - s.opts.Timing.window().Microseconds()
	for _, tier := range store.Tiers {
		for _, id := range snap.buckets[tier] {
			if id.dropAfter() <= now {
				due = append(due, id)
			}
		}
	}
	return due
}

// retired are the retired buckets that no replica's copy has any more.
func (s *Store) retired(ctx context.Context) ([]bucketID, error) {
	rows, err := s.pool.Query(ctx, fmt.Sprintf(`SELECT tier, start_us FROM idem_buckets
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
	t := task{key: req.Key, digest: req.Key.Digest(), tier: ns.Tier}
	t.decide = func(old *store.Record, now, _ time.Time) (store.Change, error) {
		_, change, err := store.DecideRelease(old, req, now)
		return change, err
	}
	return s.perform(ctx, t)
}

func (s *Store) retireAll(ctx context.Context, conn *pgx.Conn, due []bucketID, report *store.Maintenance) error {
	var failed []error
	for _, id := range due {
		moved, err := s.retire(ctx, conn, id)
		report.Moved += moved
		if err != nil {
			failed = append(failed, fmt.Errorf("retire bucket %s: %w", id.table(s.opts.Region), err))
			continue
		}
		report.Dropped = append(report.Dropped, id.describe())
	}
	return errors.Join(failed...)
}

// retire moves what is live out of a bucket and takes it out of the registry's open ones.
// What is not live when it is looked at stays so: nothing is granted into the bucket any
// more, and an expired row is never renewed.
func (s *Store) retire(ctx context.Context, conn *pgx.Conn, id bucketID) (moved int, err error) {
	for {
		n, found, err := s.moveLive(ctx, conn, id)
		moved += n
		if err != nil {
			return moved, err
		}
		if found == 0 || seeded("move-live") {
			break
		}
	}
	_, err = s.pool.Exec(ctx, fmt.Sprintf("UPDATE idem_buckets SET state = %d, changed_us = %s WHERE region = $1 AND tier = $2 AND start_us = $3 AND state = %d",
		bucketRetired, us(s.opts.Clock.Running), bucketOpen), s.opts.Region, int16(id.tier), id.start)
	return moved, err
}

// isLive is the condition of a row that still answers repeats.
func (s *Store) isLive() string {
	return fmt.Sprintf("r.state <> %d AND (r.expires_at IS NULL OR r.expires_at > %s)", stateMoved, us(s.opts.Clock.Now))
}

// moveLive reads a bucket once from end to end and moves what is live. Found is how many live
// rows there were: when there was none, the bucket can go.
func (s *Store) moveLive(ctx context.Context, conn *pgx.Conn, id bucketID) (moved, found int, err error) {
	if seeded("move-live") {
		return 0, 0, nil
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT r.digest FROM %s AS r WHERE %s", id.table(s.opts.Region), s.isLive()))
	if err != nil {
		return 0, 0, err
	}
	var (
		digest []byte
		batch  []store.KeyDigest
	)
	move := func() error {
		n, err := s.moveForward(ctx, id, batch)
		moved, batch = moved+n, nil
		return err
	}
	_, err = pgx.ForEachRow(rows, []any{&digest}, func() error {
		found++
		if batch = append(batch, store.KeyDigest(digest)); len(batch) < moveRows {
			return nil
		}
		return move()
	})
	if err != nil {
		return moved, found, err
	}
	return moved, found, move()
}

// dropAll drops the tables of retired buckets. One that is in use is left to a later run.
func (s *Store) dropAll(ctx context.Context, conn *pgx.Conn, retired []bucketID) error {
	var failed []error
	for _, id := range retired {
		if err := s.drop(ctx, conn, id); err != nil {
			failed = append(failed, fmt.Errorf("drop bucket %s: %w", id.table(s.opts.Region), err))
		}
	}
	return errors.Join(failed...)
}

// drop drops a table, unless against all expectation something in it is live: then the
// bucket is opened again.
func (s *Store) drop(ctx context.Context, conn *pgx.Conn, id bucketID) error {
	table := id.table(s.opts.Region)
	var live bool
	err := conn.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT 1 FROM %s AS r WHERE %s)", table, s.isLive())).Scan(&live)
	if err != nil && faultOf(err) != faultGone { // gone: it was dropped, and only the registry does not know
		return err
	}
	if live {
		_, err := conn.Exec(ctx, fmt.Sprintf("UPDATE idem_buckets SET state = %d WHERE region = $1 AND tier = $2 AND start_us = $3", bucketOpen),
			s.opts.Region, int16(id.tier), id.start)
		return errors.Join(errors.New("it was retired with live records in it, and is opened again"), err)
	}
	if err := repeatable(ctx, conn, "DROP TABLE IF EXISTS "+table); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "DELETE FROM idem_buckets WHERE region = $1 AND tier = $2 AND start_us = $3 AND state = $4",
		s.opts.Region, int16(id.tier), id.start, bucketRetired)
	return err
}
