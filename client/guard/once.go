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

func (o Once) table() table { return table{o.Table, "idemd_once", o.Name} }

// DDL returns the statements that make the table, for your migrations; they can be repeated.
// The error is [ErrInvalid], for a bad name.
//
// There is no Forget: a row that is gone lets it be done again. It goes with its entity:
// DELETE … WHERE name = 'capture' AND entity = 'order-1001'.
func (o Once) DDL(d Dialect) ([]string, error) {
	create, err := o.table().ddl(d, "entity", "key TEXT NOT NULL")
	return []string{create}, err
}

// Take is asked before the effect, in its transaction. first says that you act. Otherwise it was done
// already, and by is the key that did it, which is yours if this is a repeat: what came of it is found under that
// key ([Inbox.Lookup]). While another transaction has taken the entity, Take waits for its end.
//
// entity is whom it is done to, and key who asks; each has 1 to 255 bytes of UTF-8.
func (o Once) Take(ctx context.Context, tx Tx, entity, key string) (by string, first bool, err error) {
	t, err := o.table().check("entity", entity)
	if err != nil {
		return "", false, err
	}
	if err := checkText("key", key); err != nil {
		return "", false, err
	}
	taken, err := tx.Exec(ctx, tx.Dialect().statement(
		"INSERT INTO %s (name, entity, key) VALUES ($1, $2, $3) ON CONFLICT (name, entity) DO NOTHING", t), o.Name, entity, key)
	if err != nil {
		return "", false, err
	}
	if taken == 1 {
		return key, true, nil
	}
	found, err := tx.QueryRow(ctx, tx.Dialect().statement("SELECT key FROM %s WHERE name = $1 AND entity = $2", t),
		[]any{o.Name, entity}, &by)
	if err == nil && !found {
		err = ErrChanged // deleted just now
	}
	return by, false, err
}
