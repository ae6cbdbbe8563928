package sqlstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// pageRows is how many rows of a bucket one statement looks at: a longer one would keep the
// server from clearing what was deleted since it began, in all tables.
const pageRows = 5000

func (s *Store) retireAll(ctx context.Context, d definer, due []bucketID, report *store.Maintenance) error {
	var failed []error
	for _, id := range due {
		moved, gone, err := s.retire(ctx, d, id)
		report.Moved += moved
		if err != nil {
			failed = append(failed, fmt.Errorf("retire bucket %s: %w", id.table(s.opts.Region), err))
		}
		if gone {
			report.Dropped = append(report.Dropped, id.describe())
		}
	}
	return errors.Join(failed...)
}

// retire moves what is live out of a bucket and takes it out of the registry's open ones,
// unless something live in it is damaged. What is not live when it is looked at stays so:
// nothing is granted into the bucket any more, and an expired row is never renewed.
func (s *Store) retire(ctx context.Context, d definer, id bucketID) (moved int, gone bool, err error) {
	m := &mover{s: s, from: id, damaged: map[string]error{}}
	for again := true; again && !seeded("move-live"); again = m.found > 0 {
		m.found = 0
		err := s.eachLive(ctx, d, id, m.moveAll)
		if damagedPage(err) {
			m.damaged["some row"] = err // which one, only the server knows
			break
		}
		if err != nil {
			return m.moved, false, err
		}
	}
	s.keepDamaged(id, m)
	if len(m.damaged) > 0 {
		return m.moved, false, nil
	}
	_, err = d.Exec(ctx, fmt.Sprintf("UPDATE idem_buckets SET state = %d, changed_us = %s WHERE region = $1 AND tier = $2 AND start_us = $3 AND state = %d",
		bucketRetired, us(s.opts.Clock.Running), bucketOpen), s.opts.Region, int16(id.tier), id.start)
	return m.moved, err == nil, err
}

// mover moves live rows out of a bucket.
type mover struct {
	s       *Store
	from    bucketID
	moved   int
	found   int              // live rows that are not damaged: without any the bucket can go
	damaged map[string]error // by digest
}

func (m *mover) moveAll(ctx context.Context, digests [][]byte) error {
	for _, digest := range digests {
		if err := m.move(ctx, digest); err != nil {
			return err
		}
	}
	return nil
}

func (m *mover) move(ctx context.Context, digest []byte) error {
	if m.damaged[string(digest)] != nil {
		return nil // found before
	}
	if len(digest) != len(store.KeyDigest{}) {
		m.damaged[string(digest)] = damagedRow("a digest of %d bytes", len(digest))
		return nil
	}
	ok, err := m.s.moveRow(ctx, m.from, store.KeyDigest(digest))
	switch {
	case errors.Is(err, store.ErrRecordCorrupt), damagedPage(err):
		m.damaged[string(digest)] = causeOf(err)
		return nil
	case ok:
		m.moved++
	}
	m.found++
	return err
}

// keepDamaged has a bucket stay, with what in it is live but cannot be moved. Each row is
// reported once.
func (s *Store) keepDamaged(id bucketID, m *mover) {
	table := id.table(s.opts.Region)
	for digest, err := range s.kept.keep(id, s.clock.estimate(), m.damaged) {
		s.opts.Observer.Damaged(err)
		s.opts.Logger.Error("a stored record is damaged; its bucket stays until it is repaired or deleted, and is looked at again in some hours",
			"bucket", table, "digest", hex.EncodeToString([]byte(digest)), "error", err)
	}
}

// isLive is the condition of a row that still answers repeats.
func (s *Store) isLive() string {
	return fmt.Sprintf("r.state <> %d AND (r.expires_at IS NULL OR r.expires_at > %s)", stateMoved, us(s.opts.Clock.Now))
}

// eachLive reads a bucket from end to end, page by page, and gives f the digests of the live
// rows of each page.
func (s *Store) eachLive(ctx context.Context, d definer, id bucketID, f func(context.Context, [][]byte) error) error {
	table := id.table(s.opts.Region)
	next := fmt.Sprintf("SELECT digest FROM %s WHERE digest > $1 ORDER BY digest LIMIT 1 OFFSET %d", table, pageRows-1)
	rest := fmt.Sprintf("SELECT r.digest FROM %s AS r WHERE r.digest > $1 AND %s", table, s.isLive())
	page := rest + " AND r.digest <= $2"
	for after, more := []byte{}, true; more; {
		var (
			last    []byte
			digests [][]byte
		)
		err := d.QueryRow(ctx, next, after).Scan(&last)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			more = false
			digests, err = d.collect(ctx, rest, after)
		case err == nil:
			digests, err = d.collect(ctx, page, after, last)
		}
		if err != nil {
			return err
		}
		if err := f(ctx, digests); err != nil {
			return err
		}
		after = last
	}
	return nil
}

// collect reads one column of bytes.
func (d definer) collect(ctx context.Context, sql string, args ...any) ([][]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, d.longest+answerTime)
	defer cancel()
	rows, err := d.conn.Query(bounded, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[[]byte])
}

// dropAll drops the tables of retired buckets. One that is in use is left to a later run.
func (s *Store) dropAll(ctx context.Context, d definer, retired []bucketID) error {
	var failed []error
	for _, id := range retired {
		if err := s.drop(ctx, d, id); err != nil {
			failed = append(failed, fmt.Errorf("drop bucket %s: %w", id.table(s.opts.Region), err))
		}
	}
	return errors.Join(failed...)
}

var errStillLive = errors.New("it was retired with live records in it, and is opened again")

// drop drops a table, unless against all expectation something in it is live: then the
// bucket is opened again.
func (s *Store) drop(ctx context.Context, d definer, id bucketID) error {
	err := s.eachLive(ctx, d, id, func(_ context.Context, digests [][]byte) error {
		if len(digests) > 0 {
			return errStillLive
		}
		return nil
	})
	if errors.Is(err, errStillLive) {
		_, opened := d.Exec(ctx, fmt.Sprintf("UPDATE idem_buckets SET state = %d WHERE region = $1 AND tier = $2 AND start_us = $3", bucketOpen),
			s.opts.Region, int16(id.tier), id.start)
		return errors.Join(err, opened)
	}
	if err != nil && faultOf(err) != faultGone { // gone: it was dropped, and only the registry does not know
		return err
	}
	if err := repeatable(ctx, d, "DROP TABLE IF EXISTS "+id.table(s.opts.Region)); err != nil {
		return err
	}
	_, err = d.Exec(ctx, "DELETE FROM idem_buckets WHERE region = $1 AND tier = $2 AND start_us = $3 AND state = $4",
		s.opts.Region, int16(id.tier), id.start, bucketRetired)
	return err
}
