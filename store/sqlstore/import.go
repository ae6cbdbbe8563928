package sqlstore

import (
	"bytes"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// ImportRecords implements [store.Placements]. A record goes into home under the guards of a
// grant, whatever its own times: so readers find it, it is met by what is put beside it across
// a bucket's end (3), and the bucket is not dropped while it is live. A stored record that it
// replaces moves with it (6).
func (s *Store) ImportRecords(ctx context.Context, namespace string, revision int64, records []store.Inspection) error {
	ns, err := s.GetNamespace(ctx, namespace)
	if err != nil {
		return err
	}
	if err := ns.CheckMove(revision, store.MoveSealed); err != nil {
		return err
	}
	if err := ns.CheckImport(records...); err != nil {
		return err
	}
	parts, err := s.importParts(records)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if err := s.again(ctx, &ns, func() error { return s.storePart(&ns, revision, part) }); err != nil {
			return err
		}
	}
	return nil
}

// importPart is what one transaction imports: columns with a value of each row, in the order
// of rowColumns.
type importPart struct {
	columns []any
	digests [][]byte
	fences  []int64
	bytes   int
}

// importParts makes parts of bounded size, in the order in which rows are locked. Of a key that
// is there twice the higher fence counts.
func (s *Store) importParts(records []store.Inspection) ([]*importPart, error) {
	rows := make([]*row, len(records))
	for i, in := range records {
		rows[i] = &row{digest: in.Record.Key.Digest(), rec: in.Record, events: in.Events}
	}
	slices.SortStableFunc(rows, func(a, b *row) int { return bytes.Compare(a.digest[:], b.digest[:]) })
	var parts []*importPart
	for i, r := range rows {
		switch {
		case i+1 < len(rows) && rows[i+1].digest == r.digest:
			if rows[i+1].rec.Fence < r.rec.Fence {
				rows[i+1] = r
			}
			continue
		case parts == nil || parts[len(parts)-1].full(s.opts.MaxBatch):
			parts = append(parts, &importPart{})
		}
		if err := parts[len(parts)-1].add(r); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func (p *importPart) full(limit int) bool { return len(p.digests) >= limit || p.bytes >= maxBatchBytes }

func (p *importPart) add(r *row) error {
	args, err := r.args()
	if err != nil {
		return err
	}
	if p.columns == nil {
		p.columns = make([]any, len(args))
	}
	for i, arg := range args {
		values, _ := p.columns[i].([]any)
		p.columns[i] = append(values, arg)
		if b, ok := arg.([]byte); ok {
			p.bytes += len(b)
		}
	}
	p.digests, p.fences = append(p.digests, r.digest[:]), append(p.fences, r.rec.Fence)
	return nil
}

// storePart imports one part, or nothing of it.
func (s *Store) storePart(ns *store.Namespace, revision int64, part *importPart) error {
	snap, err := s.catalog.current(s.ending)
	if err != nil {
		return err
	}
	phases := []store.MovePhase{store.MoveSealed}
	return s.moveTx(ns.Name, revision, phases, func(ctx context.Context, tx pgx.Tx, now, sealed int64) error {
		to, err := s.target(snap, ns.Tier, now, sealed)
		if err != nil {
			return err
		}
		guards := []any{to.lo, to.hi, s.opts.Timing.MaxStatement.Microseconds()}
		for _, b := range to.older {
			if _, err := tx.Exec(ctx, snap.bucket(b).replaced, append([]any{part.digests, part.fences}, guards...)...); err != nil {
				return err
			}
		}
		if to.marked && !seeded("import-marker") {
			if _, err := tx.Exec(ctx, to.marker, append([]any{part.digests}, guards...)...); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, to.put, append(part.columns[:len(part.columns):len(part.columns)], guards...)...); err != nil {
			return err
		}
		return s.checkStored(ctx, tx, to.plan, part)
	})
}

// checkStored checks that each record of a part is in home, or a row with a higher fence is
// somewhere. If neither is, things are not as they seemed, and what made way for it must not.
func (s *Store) checkStored(ctx context.Context, tx pgx.Tx, p *plan, part *importPart) error {
	var missing int
	if err := tx.QueryRow(ctx, p.missing, part.digests, part.fences).Scan(&missing); err != nil {
		return err
	}
	if missing > 0 && !seeded("import-whole") {
		return errAgain
	}
	return nil
}
