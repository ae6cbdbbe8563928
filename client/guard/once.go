package guard

import "context"

// Once does something to an entity once in its whole life, under whatever key it is asked for: one captured payment
// per order, also for an app that was restarted and made a fresh key. The zero value is ready for use, once its
// table is there.
type Once struct {
	// Table has a row for each entity, see DDL. "idemd_once" if empty.
	Table string
	// Name is what is done once, such as "capture". 255 bytes at most; it may be empty.
	Name string
}

func (o Once) entries() entries {
	return entries{table{o.Table, "idemd_once", o.Name}, "entity", "key"}
}

// DDL returns the statements that make the table, for your migrations; see [Inbox.DDL].
//
// Nothing is forgotten by its age, as a row that is gone lets it be done again: it goes with its entity, see Forget.
func (o Once) DDL(d Dialect) ([]string, error) {
	create, err := o.entries().ddl(d, "entity", "key TEXT NOT NULL,\n  outcome "+d.bytes())
	return []string{create}, err
}

// Do runs effect if it was not yet done to the entity, and has the entity's row, with the key and the outcome, commit with
// what effect writes in tx. Otherwise it returns the outcome of the first and the key that it had, which is yours if
// this is a repeat; effect does not run. While another transaction does it to the entity, Do waits for its end.
//
// entity is whom it is done to, and key who asks; each has 1 to 255 bytes of UTF-8. The entity of a
// tenant must have the tenant's name in it: the guard knows of no tenants. What is asked for is not compared, as it is with
// an Inbox: who asks with another amount is given the first one's outcome.
//
// An error of effect is returned as it is, and you roll back: then it is as new as before. Committed all the same, it is
// [ErrNoOutcome] for all who come. outcome may be empty; keep it small, as it is kept for as long as the row.
func (o Once) Do(ctx context.Context, tx Tx, entity, key string, effect func() (outcome []byte, err error)) (Entry, error) {
	if err := checkText("key", key); err != nil {
		return Entry{}, err
	}
	outcome, first, err := o.entries().do(ctx, tx, entity, key, effect)
	switch {
	case err != nil:
		return Entry{}, err
	case first:
		return Entry{Key: key, Outcome: outcome}, nil
	}
	row, err := look[string](ctx, tx, o.entries(), entity)
	switch {
	case err != nil:
		return Entry{}, err
	case !row.found:
		return Entry{}, ErrChanged // deleted just now
	}
	return row.repeat(row.with)
}

// Forget deletes the entity's row, in the transaction that deletes the entity itself, and reports whether there was one: what was
// done once can be done again after that.
func (o Once) Forget(ctx context.Context, tx Tx, entity string) (bool, error) {
	return o.entries().forget(ctx, tx, "entity", entity)
}
