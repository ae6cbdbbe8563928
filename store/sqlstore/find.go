package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// found is what the database knows of a key at an instant.
type found struct {
	row *row  // nil if there is none
	now int64 // by the database's clock
	// granted says that there was no row, and that the Claim of this batch made one at now.
	granted bool
}

func (f found) record() *store.Record {
	if f.row == nil {
		return nil
	}
	return f.row.rec
}

// decidedAt is the time at which a record is decided on. Now is when the transaction that read
// it began, and what it read can be from after that, all the more behind a lock.
func decidedAt(rec *store.Record, now int64) time.Time {
	at := timeOf(now)
	if rec == nil {
		return at
	}
	return slices.MaxFunc([]time.Time{at, rec.GrantedAt, rec.EndedAt}, time.Time.Compare)
}

// find reads the row of a task's key, without events, together with others' (4).
func (s *Store) find(ctx context.Context, t *task) (found, error) {
	return s.batches.finds[t.tier].do(ctx, t, 0, struct{}{})
}

type findOperation = operation[struct{}, found]

// maxReads bounds the rows that one statement reads: each can have an outcome of 256 KiB.
const maxReads = 32

// runFinds carries out a batch of reads.
func (s *Store) runFinds(tier store.Tier, ops []*findOperation) {
	ctx, cancel := s.statementContext()
	defer cancel()
	for part := range slices.Chunk(ops, maxReads) {
		apart(part, func(ops []*findOperation) error { return s.findAll(ctx, tier, ops) })
	}
}

// findAll reads the rows of all operations in one statement.
func (s *Store) findAll(ctx context.Context, tier store.Tier, ops []*findOperation) error {
	rows, now, err := s.readRows(ctx, tier, digestsOf(ops), false)
	if len(ops) == 1 && damagedPage(err) {
		s.opts.Observer.Damaged(err)
		return corrupt(err)
	}
	if err != nil {
		return err
	}
	each(ops, func(op *findOperation) { op.answer, op.err = rows.answer(op.digest, now) })
	return nil
}

// readResult is what a read gave for one key.
type readResult struct {
	row *row
	err error
}

type readResults map[store.KeyDigest]readResult

func (r readResults) answer(digest store.KeyDigest, now int64) (found, error) {
	result := r[digest]
	return found{row: result.row, now: now}, result.err
}

// readRows reads the rows of keys from all buckets in which they can be.
func (s *Store) readRows(ctx context.Context, tier store.Tier, digests [][]byte, events bool) (readResults, int64, error) {
	snap, err := s.catalog.current(ctx)
	if err != nil {
		return nil, 0, err
	}
	now := s.clock.estimate()
	home := bucketAt(tier, now)
	if err := s.provided(snap, home, now); err != nil {
		return nil, 0, err
	}
	p := snap.plan(home)
	text := p.find
	if events {
		text = p.read
	}
	var results readResults
	err = s.reading(ctx, func(q querier) error {
		rows, err := q.Query(ctx, text, digests)
		if err == nil {
			results, now, err = s.scanFound(rows, p.searched, events)
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	s.clock.saw(now)
	if home.start < bucketAt(tier, now).start && !seeded("searched") { // not all buckets were searched
		return nil, 0, fmt.Errorf("the time is not the one expected: %w", errAgain)
	}
	if err := snap.check(now); err != nil {
		return nil, 0, err
	}
	return results, now, s.clock.check(now)
}

// reading runs what reads, and returns once what it has read cannot be lost by a failover.
func (s *Store) reading(ctx context.Context, read func(querier) error) error {
	if s.dialect.barrier() == "" {
		return read(s.pool)
	}
	return s.dialect.runTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := read(tx); err != nil {
			return err
		}
		return s.stand(ctx, tx)
	})
}

// stand has a transaction, which has changed nothing, wait until what it has read cannot be
// lost any more.
func (s *Store) stand(ctx context.Context, tx pgx.Tx) error {
	if barrier := s.dialect.barrier(); barrier != "" {
		_, err := tx.Exec(ctx, barrier)
		return err
	}
	return nil
}

// scanFound reads the answer of a plan's find or read. A damaged row is the error of its key
// alone.
func (s *Store) scanFound(rows pgx.Rows, buckets []bucketID, events bool) (readResults, int64, error) {
	defer rows.Close()
	results := readResults{}
	var now int64
	for rows.Next() {
		var (
			bucket int32
			st     stored
		)
		targets := append([]any{&bucket}, st.targets()...)
		if events {
			targets = append(targets, &st.events)
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, 0, err
		}
		if bucket == nowRow {
			now = st.fence
			s.clock.remember(st.previousFence)
			continue
		}
		r, err := st.row(buckets[bucket])
		if err != nil {
			s.opts.Observer.Damaged(err)
			s.opts.Logger.Error("a stored record is damaged", "bucket", buckets[bucket].table(s.opts.Region), "error", err)
			err = corrupt(err)
		}
		results[store.KeyDigest(st.digest)] = readResult{row: r, err: err} // the newest wins
	}
	if err := rows.Err(); err != nil {
		return nil, 0, err
	}
	if now == 0 {
		return nil, 0, errors.New("the database did not tell its time")
	}
	return results, now, nil
}

// row makes the row of what was read.
func (s *stored) row(bucket bucketID) (*row, error) {
	rec, err := s.record()
	if err != nil {
		return nil, err
	}
	r := &row{bucket: bucket, digest: store.KeyDigest(s.digest), rec: rec}
	if s.events != nil {
		r.events, err = decodeEvents(s.events)
	}
	return r, err
}
