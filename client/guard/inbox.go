package guard

import (
	"bytes"
	"context"
	"time"
)

// Inbox carries a key out once, and gives its outcome to every repeat. The zero value is ready
// for use, once its table is there.
type Inbox struct {
	// Table has a row for each key, see DDL. "idemd_inbox" if empty.
	Table string
	// Name is who carries keys out: two that consume the same messages, with one table, have two
	// names. 255 bytes at most; it may be empty.
	Name string
}

func (i Inbox) entries() entries {
	return entries{table{i.Table, "idemd_inbox", i.Name}, "key", "fingerprint"}
}

// DDL returns the statements that make the table, for your migrations. They can be repeated, also while the table is
// in use; if two who make it do so at once, PostgreSQL refuses one of them (23505, 42710, 42P07), who repeats them.
// The error is [ErrInvalid], for a bad name.
func (i Inbox) DDL(d Dialect) ([]string, error) {
	create, err := i.entries().ddl(d, "key", "fingerprint "+d.bytes()+" NOT NULL,\n  outcome "+d.bytes(), d.ageIndex())
	return []string{create}, err
}

// Do runs effect if the key is new, and has its row and outcome commit with what effect writes in tx. For a
// key that was committed it returns the stored outcome, and effect does not run. While another
// transaction carries the key out, Do waits for its end.
//
// key is one per intent and step, such as client.Attempt.DownstreamKey("ledger") or an event's id;
// 1 to 255 bytes of UTF-8. A key that a tenant chose must be made one with the tenant's name in it: the guard knows
// of no tenants. fingerprint is a digest of the request, compared byte for byte with that of the first: another one
// is [ErrMismatch]; nil and empty are one value, for "none".
//
// An error of effect is returned as it is, and you roll back: then the key is as new as before. Committed
// all the same, it is [ErrNoOutcome] for every repeat. outcome may be empty; keep it small.
func (i Inbox) Do(ctx context.Context, tx Tx, key string, fingerprint []byte, effect func() (outcome []byte, err error)) (Entry, error) {
	outcome, first, err := i.entries().do(ctx, tx, key, present(fingerprint), effect)
	switch {
	case err != nil:
		return Entry{}, err
	case first:
		return Entry{Key: key, Outcome: outcome}, nil
	}
	row, err := look[[]byte](ctx, tx, i.entries(), key)
	switch {
	case err != nil:
		return Entry{}, err
	case !row.found:
		return Entry{}, ErrChanged // forgotten just now
	case !bytes.Equal(row.with, fingerprint):
		return Entry{}, ErrMismatch
	}
	return row.repeat(key)
}

// Lookup returns the outcome of a key that was committed, or found as false. It waits for nobody: what
// another transaction is carrying out is not found. Nor is, at REPEATABLE READ and SERIALIZABLE, what was committed after
// this transaction's snapshot.
func (i Inbox) Lookup(ctx context.Context, tx Tx, key string) (outcome []byte, found bool, err error) {
	row, err := look[[]byte](ctx, tx, i.entries(), key)
	if err != nil || !row.found {
		return nil, false, err
	}
	entry, err := row.repeat(key)
	return entry.Outcome, err == nil, err
}

// Forget deletes at most limit keys of this Name that were entered longer ago than age by the database's
// clock, and returns how many. A repeat of one that comes later is taken for new: age must exceed the latest
// that a retry, a redelivery or a redrive of a dead-letter queue can come. Call it, each time in a
// transaction of its own, until it deletes fewer than limit.
func (i Inbox) Forget(ctx context.Context, tx Tx, age time.Duration, limit int) (int64, error) {
	if age <= 0 || limit <= 0 {
		return 0, invalid("age %v and limit %d must be positive", age, limit)
	}
	t, err := i.entries().quoted()
	if err != nil {
		return 0, err
	}
	condition, cutoff := tx.Dialect().before(age)
	return tx.Exec(ctx, tx.Dialect().statement("DELETE FROM %[1]s WHERE name = $1 AND key IN"+
		" (SELECT key FROM %[1]s WHERE name = $1 AND %[2]s ORDER BY recorded_at LIMIT $3)", t, condition), i.Name, cutoff, limit)
}
