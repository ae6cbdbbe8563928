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

// Entry is what an Inbox knows of a key.
type Entry struct {
	// Repeat says that the effect was committed before, or earlier in this transaction.
	Repeat bool
	// Outcome is what the function of the first returned, byte for byte.
	Outcome []byte
}

func (i Inbox) table() table { return table{i.Table, "idemd_inbox", i.Name} }

// DDL returns the statements that make the table, for your migrations; they can be repeated.
// The error is [ErrInvalid], for a bad name.
func (i Inbox) DDL(d Dialect) ([]string, error) {
	t := i.table()
	create, err := t.ddl(d, "key", "fingerprint "+d.bytes()+" NOT NULL,\n  outcome "+d.bytes())
	if err != nil {
		return nil, err
	}
	index, err := t.index(d, "_age", "(name, recorded_at)")
	return []string{create, index}, err
}

// Do runs effect if the key is new, and has its row and outcome commit with what effect writes in tx. For a
// key that was committed it returns the stored outcome, and effect does not run. While another
// transaction carries the key out, Do waits for its end.
//
// key is one per intent and step, such as client.Attempt.DownstreamKey("ledger") or an event's id;
// 1 to 255 bytes of UTF-8. fingerprint is a digest of the request, compared byte for byte with that of the first:
// another one is [ErrMismatch]; nil and empty are one value, for "none".
//
// An error of effect is returned as it is, and you roll back: then the key is as new as before. Committed
// all the same, it is [ErrNoOutcome] for every repeat. outcome may be empty; keep it small.
func (i Inbox) Do(ctx context.Context, tx Tx, key string, fingerprint []byte, effect func() (outcome []byte, err error)) (Entry, error) {
	t, err := i.table().check("key", key)
	if err != nil {
		return Entry{}, err
	}
	entered, err := tx.Exec(ctx, tx.Dialect().statement(
		"INSERT INTO %s (name, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT (name, key) DO NOTHING", t),
		i.Name, key, present(fingerprint))
	if err != nil {
		return Entry{}, err
	}
	if entered == 0 {
		return i.repeat(ctx, tx, key, fingerprint)
	}
	outcome, err := effect()
	if err != nil {
		return Entry{}, err
	}
	recorded, err := tx.Exec(ctx, tx.Dialect().statement("UPDATE %s SET outcome = $1 WHERE name = $2 AND key = $3", t),
		present(outcome), i.Name, key)
	if err == nil && recorded != 1 {
		err = ErrChanged
	}
	return Entry{Outcome: outcome}, err
}

// repeat answers a key that has a row.
func (i Inbox) repeat(ctx context.Context, tx Tx, key string, fingerprint []byte) (Entry, error) {
	row, err := i.look(ctx, tx, key)
	switch {
	case err != nil:
		return Entry{}, err
	case !row.found:
		return Entry{}, ErrChanged // forgotten just now
	case !bytes.Equal(row.fingerprint, fingerprint):
		return Entry{}, ErrMismatch
	case row.outcome == nil:
		return Entry{}, ErrNoOutcome
	}
	return Entry{Repeat: true, Outcome: *row.outcome}, nil
}

// Lookup returns the outcome of a key that was committed, or found as false. It waits for nobody: what
// another transaction is carrying out is not found.
func (i Inbox) Lookup(ctx context.Context, tx Tx, key string) (outcome []byte, found bool, err error) {
	row, err := i.look(ctx, tx, key)
	switch {
	case err != nil || !row.found:
		return nil, false, err
	case row.outcome == nil:
		return nil, false, ErrNoOutcome
	}
	return *row.outcome, true, nil
}

type inboxRow struct {
	found       bool
	fingerprint []byte
	outcome     *[]byte // nil if there is none
}

func (i Inbox) look(ctx context.Context, tx Tx, key string) (inboxRow, error) {
	t, err := i.table().check("key", key)
	if err != nil {
		return inboxRow{}, err
	}
	var row inboxRow
	var none bool
	var outcome []byte
	row.found, err = tx.QueryRow(ctx, tx.Dialect().statement(
		"SELECT fingerprint, outcome IS NULL, outcome FROM %s WHERE name = $1 AND key = $2", t),
		[]any{i.Name, key}, &row.fingerprint, &none, &outcome)
	if !none {
		row.outcome = &outcome
	}
	return row, err
}

// Forget deletes at most limit keys of this Name that were entered longer ago than age by the database's
// clock, and returns how many. A repeat of one that comes later is taken for new: age must exceed the latest
// that a retry, a redelivery or a redrive of a dead-letter queue can come. Call it, each time in a
// transaction of its own, until it deletes fewer than limit.
func (i Inbox) Forget(ctx context.Context, tx Tx, age time.Duration, limit int) (int64, error) {
	if age <= 0 || limit <= 0 {
		return 0, invalid("age %v and limit %d must be positive", age, limit)
	}
	t, err := i.table().quoted()
	if err != nil {
		return 0, err
	}
	condition, cutoff := tx.Dialect().before(age)
	return tx.Exec(ctx, tx.Dialect().statement("DELETE FROM %[1]s WHERE name = $1 AND key IN"+
		" (SELECT key FROM %[1]s WHERE name = $1 AND %[2]s ORDER BY recorded_at LIMIT $3)", t, condition), i.Name, cutoff, limit)
}

// present makes nil bytes empty: drivers send nil as NULL.
func present(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
