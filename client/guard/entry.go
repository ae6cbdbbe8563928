package guard

import "context"

// Entry is what an [Inbox] or a [Once] knows of an effect.
type Entry struct {
	// Repeat says that the effect was committed before, or earlier in this transaction.
	Repeat bool
	// Key is the one that it was carried out under: that which is asked for, or for a Once an earlier one.
	Key string
	// Outcome is what the function of the first returned, byte for byte.
	Outcome []byte
}

// entries are a table with an entry for each of something, which commits with what came of it: what Inbox
// and Once have in common.
type entries struct {
	table
	of, with string // what has an entry, and the column of what it is entered with
}

// do enters what is new, and has effect's outcome commit with it. It returns first as false if there is an entry.
func (e entries) do(ctx context.Context, tx Tx, of string, with any, effect func() ([]byte, error)) (outcome []byte, first bool, err error) {
	t, err := e.check(e.of, of)
	if err != nil {
		return nil, false, err
	}
	entered, err := tx.Exec(ctx, tx.Dialect().statement(
		"INSERT INTO %[1]s (name, %[2]s, %[3]s) VALUES ($1, $2, $3) ON CONFLICT (name, %[2]s) DO NOTHING", t, e.of, e.with),
		e.name, of, with)
	if err != nil || entered == 0 {
		return nil, false, err
	}
	if outcome, err = effect(); err != nil {
		return nil, true, err
	}
	recorded, err := tx.Exec(ctx, tx.Dialect().statement("UPDATE %s SET outcome = $1 WHERE name = $2 AND %s = $3", t, e.of),
		present(outcome), e.name, of)
	if err == nil && recorded != 1 {
		err = ErrChanged
	}
	return outcome, true, err
}

// row is what was entered: with what, and the outcome, nil if there is none.
type row[T string | []byte] struct {
	found   bool
	with    T
	outcome *[]byte
}

func look[T string | []byte](ctx context.Context, tx Tx, e entries, of string) (r row[T], err error) {
	t, err := e.check(e.of, of)
	if err != nil {
		return r, err
	}
	var none bool
	var outcome []byte
	r.found, err = tx.QueryRow(ctx, tx.Dialect().statement(
		"SELECT %[3]s, outcome IS NULL, outcome FROM %[1]s WHERE name = $1 AND %[2]s = $2", t, e.of, e.with),
		[]any{e.name, of}, &r.with, &none, &outcome)
	if !none {
		r.outcome = &outcome
	}
	return r, err
}

// repeat is the answer to who comes again.
func (r row[T]) repeat(key string) (Entry, error) {
	if r.outcome == nil {
		return Entry{}, ErrNoOutcome
	}
	return Entry{Repeat: true, Key: key, Outcome: *r.outcome}, nil
}

// present makes nil bytes empty: drivers send nil as NULL.
func present(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
