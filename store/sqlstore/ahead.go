package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
)

// bucketsAhead is how many buckets are made beyond the current one.
const bucketsAhead = 2

// registerTimeout bounds the registration of buckets, also when the network is silent.
const registerTimeout = 30 * time.Second

// States of a bucket in the registry.
const (
	bucketOpen    = 1
	bucketRetired = 2
)

// keeper makes buckets and namespaces. It needs no key of its own for that: several may work
// at once.
type keeper struct {
	opts    Options
	pool    *pgxpool.Pool
	dialect dialect
	clock   *dbClock
	catalog *catalog
}

func newKeeper(opts Options, pool *pgxpool.Pool, d dialect, clock *dbClock, c *catalog) *keeper {
	return &keeper{opts: opts, pool: pool, dialect: d, clock: clock, catalog: c}
}

// createAhead makes the buckets that are missing, and the columns that open ones lack, and tells how many there are after the
// current one.
func (k *keeper) createAhead(ctx context.Context) error {
	snap, err := k.catalog.current(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, tier := range snap.tiers() {
		if err := k.provide(ctx, snap, tier); err != nil {
			failed = append(failed, err)
		}
	}
	if snap, err = k.catalog.current(ctx); err != nil {
		return errors.Join(append(failed, err)...)
	}
	if err := k.completeTables(ctx, snap); err != nil {
		failed = append(failed, err)
	}
	k.opts.Observer.BucketsAhead(k.ahead(snap))
	if err := k.missing(snap); err != nil {
		failed = append([]error{err}, failed...)
	}
	return errors.Join(failed...)
}

// wanted are the current bucket of a tier and the next ones.
func (k *keeper) wanted(tier store.Tier) []bucketID {
	ids := []bucketID{bucketAt(tier, k.clock.estimate())}
	for range bucketsAhead {
		ids = append(ids, ids[len(ids)-1].next())
	}
	return ids
}

// ahead is how many buckets follow the current one without a gap, in the tier that has the
// fewest.
func (k *keeper) ahead(snap *snapshot) int {
	fewest := bucketsAhead
	for _, tier := range snap.tiers() {
		n := 0
		for _, id := range k.wanted(tier)[1:] {
			if !slices.Contains(snap.buckets[tier], id) {
				break
			}
			n++
		}
		fewest = min(fewest, n)
	}
	return fewest
}

// missing says which buckets that are needed now or next do not exist.
func (k *keeper) missing(snap *snapshot) error {
	var names []string
	for _, tier := range snap.tiers() {
		for _, id := range k.wanted(tier)[:2] {
			if !slices.Contains(snap.buckets[tier], id) {
				names = append(names, fmt.Sprintf("%s (from %s)", id.table(k.opts.Region), timeOf(id.start).Format(time.RFC3339)))
			}
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("no bucket %s: without it claims are refused from then on", strings.Join(names, ", "))
}

// provide makes the buckets of a tier that are missing.
func (k *keeper) provide(ctx context.Context, snap *snapshot, tier store.Tier) error {
	missing := slices.DeleteFunc(k.wanted(tier), func(id bucketID) bool { return slices.Contains(snap.buckets[tier], id) })
	if len(missing) == 0 {
		return nil
	}
	if err := k.createTables(ctx, missing); err != nil {
		return err
	}
	if err := k.register(ctx, missing); err != nil {
		return fmt.Errorf("register buckets: %w", err)
	}
	return k.catalog.refresh(ctx)
}

// createTables makes the tables of buckets. A table without a row in the registry is nothing.
func (k *keeper) createTables(ctx context.Context, ids []bucketID) error {
	return define(ctx, k.pool, bucketTimeout, func(d definer) error {
		for _, id := range ids {
			for _, statement := range k.dialect.createBucket(id, k.opts.Region) {
				if err := repeatable(ctx, d, statement); err != nil {
					return fmt.Errorf("create bucket %s: %w", id.table(k.opts.Region), err)
				}
			}
		}
		return nil
	})
}

// repeatable runs a statement on tables, again if another replica's was in its way.
func repeatable(ctx context.Context, d definer, statement string) error {
	for n := 0; ; n++ {
		_, err := d.Exec(ctx, statement)
		if err == nil || n == tries || faultOf(err) != faultRetry && !madeMeanwhile(err) {
			return err
		}
		if ended := backoff(ctx, n+2); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// alreadyThere are unique_violation, duplicate_table and duplicate_object: which of them it is
// depends on how far the other session is.
var alreadyThere = []string{"23505", "42P07", "42710"}

// madeMeanwhile says that IF NOT EXISTS did not see what another session was making.
func madeMeanwhile(err error) bool { return hasCode(err, alreadyThere...) }

// register adds buckets of one tier to the registry. Its rule keeps copies of the registry
// safe: a copy that has a bucket has all older ones into which something may yet be granted.
// Otherwise a replica at work in the newer one would not look into the older one, where
// another may just have granted the same key. So a bucket is added behind a newer one only
// while it will be current for longer than any copy lives; the newest may be added at any
// time, and all that are missing are added at once.
func (k *keeper) register(ctx context.Context, ids []bucketID) error {
	starts := make([]int64, len(ids))
	for i, id := range ids {
		starts[i] = id.start
	}
	bounded, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	return k.dialect.runTx(bounded, k.pool, func(tx pgx.Tx) error {
		if err := k.lockRegion(bounded, tx); err != nil {
			return err
		}
		_, err := tx.Exec(bounded, fmt.Sprintf(`INSERT INTO idem_buckets (region, tier, start_us, state, changed_us)
SELECT $1::text, $2::int2, x.start_us, %d, t.us FROM unnest($3::int8[]) AS x(start_us), (SELECT %s AS us) AS t
WHERE x.start_us + $4::int8 > t.us AND (x.start_us + $4::int8 - t.us >= $5::int8 OR NOT EXISTS
  (SELECT 1 FROM idem_buckets AS b WHERE b.region = $1 AND b.tier = $2 AND b.start_us > x.start_us))
ON CONFLICT (region, tier, start_us) DO NOTHING`, bucketOpen, us(k.opts.Clock.Running)),
			k.opts.Region, int16(ids[0].tier), starts, ids[0].width(), copyLag.Microseconds())
		return err
	})
}

// lockRegion lets one transaction at a time change the region's part of the registry.
func (k *keeper) lockRegion(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO idem_clock (region, newest_us) VALUES ($1, 0) ON CONFLICT (region) DO NOTHING", k.opts.Region)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "SELECT newest_us FROM idem_clock WHERE region = $1 FOR UPDATE", k.opts.Region)
	return err
}
