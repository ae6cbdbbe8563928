package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/pagetoken"
)

// member is what a region's row has in JSON. MadeAt is when the region was begun, zero where an
// earlier release did or has written the row since.
type member struct {
	store.Membership
	MadeAt time.Time `json:"made_at,omitzero"`
}

// beMember gives the region's store its id and what seals its page tokens, if it has none: then this is the first process that
// opens it.
func (s *Store) beMember(ctx context.Context) error {
	own := member{store.Membership{StoreID: store.NewStoreID()}, time.UnixMicro(s.catalog.copy.Load().now).UTC()}
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	tag, err := s.pool.Exec(ctx, "INSERT INTO idem_members (region, membership) VALUES ($1, $2) ON CONFLICT (region) DO NOTHING", s.opts.Region, string(text))
	if err != nil {
		return err
	}
	s.made = tag.RowsAffected() == 1
	if own, err = readMember(ctx, s.pool, s.opts.Region, ""); err == nil { // else whoever needs it is told
		s.madeAt = own.MadeAt
	}
	var secret string
	if err := s.pool.QueryRow(ctx, "SELECT page_secret::text FROM idem_members WHERE region = $1", s.opts.Region).Scan(&secret); err != nil {
		return err
	}
	s.pages = pagetoken.New([]byte(secret))
	return nil
}

func readMember(ctx context.Context, q rowQuerier, region, lock string) (m member, err error) {
	var text string
	if err := q.QueryRow(ctx, "SELECT membership FROM idem_members WHERE region = $1"+lock, region).Scan(&text); err != nil {
		return m, err
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return m, &store.Error{Sentinel: store.ErrRecordCorrupt, Cause: err,
			Detail: "what the store knows of other regions' stores (table idem_members) is damaged; an operator must repair it"}
	}
	return m, nil
}

func writeMember(ctx context.Context, tx pgx.Tx, region string, m member) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode what is known of other regions' stores: %w", err)
	}
	_, err = tx.Exec(ctx, "UPDATE idem_members SET membership = $2 WHERE region = $1", region, string(text))
	return err
}

// Membership implements [store.Members]. It asks the database.
func (s *Store) Membership(ctx context.Context) (store.Membership, error) {
	if err := s.closed(); err != nil {
		return store.Membership{}, err
	}
	bounded, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	m, err := readMember(bounded, s.pool, s.opts.Region, "")
	if err != nil {
		return store.Membership{}, s.keeper().refused(ctx, err)
	}
	return m.Membership, nil
}

// SetMembership implements [store.Members].
func (s *Store) SetMembership(ctx context.Context, old, next store.Membership) error {
	if err := s.closed(); err != nil {
		return err
	}
	err := s.dialect.runTx(ctx, s.pool, func(tx pgx.Tx) error {
		stored, err := readMember(ctx, tx, s.opts.Region, " FOR UPDATE")
		if err != nil {
			return err
		}
		if stored.Membership, err = stored.Replace(old, next); err != nil {
			return err
		}
		return writeMember(ctx, tx, s.opts.Region, stored)
	})
	if err != nil {
		return s.keeper().refused(ctx, err)
	}
	return nil
}

// leave has the region's store hear all other regions before it is a home again.
func (k *keeper) leave(ctx context.Context, tx pgx.Tx) error {
	m, err := readMember(ctx, tx, k.opts.Region, " FOR UPDATE")
	if err != nil || !m.Joined {
		return err
	}
	m.Joined = false
	return writeMember(ctx, tx, k.opts.Region, m)
}

// ErrNoSuchRegion says that the database has nothing of the region that it is opened for.
var ErrNoSuchRegion = errors.New("no such region in the database")

// checkExists refuses a region that was neither served nor migrated, if it must exist or if the
// database has others.
func (s *Store) checkExists(ctx context.Context) error {
	if !s.opts.MustExist && !s.opts.Alone {
		return nil
	}
	var known bool
	var regions []string
	err := s.pool.QueryRow(ctx, `WITH known AS (SELECT region FROM idem_members UNION SELECT region FROM idem_buckets)
SELECT EXISTS (SELECT FROM known WHERE region = $1), coalesce((SELECT array_agg(region ORDER BY region) FROM known), '{}')`, s.opts.Region).Scan(&known, &regions)
	switch {
	case err != nil:
		return fmt.Errorf("ask for the database's regions: %w", err)
	case !known && (s.opts.MustExist || s.opts.Alone && len(regions) > 0):
		return fmt.Errorf("%w: it has no table of region %q, and none was made; it has the keys of %s", ErrNoSuchRegion, s.opts.Region, store.RegionsText(regions))
	}
	return nil
}

// sharedBy reads which regions have the namespaces in common: those that were served.
func sharedBy(ctx context.Context, q rowQuerier) (regions []string, err error) {
	err = q.QueryRow(ctx, "SELECT coalesce(array_agg(region), '{}') FROM idem_members").Scan(&regions)
	return sharers(regions), err
}

// sharers are the regions of a database, if there are several.
func sharers(regions []string) []string {
	if len(regions) < 2 {
		return nil
	}
	slices.Sort(regions)
	return regions
}
