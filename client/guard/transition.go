package guard

import (
	"cmp"
	"context"
	"fmt"
)

// Transition takes a row of your own table from one state to the next, as long as no state comes back; else it needs an
// [Inbox] around it, see Apply.
type Transition struct {
	// Table is yours. It may have a schema: "shop.orders".
	Table string
	// ID is the column that is unique for each row.
	ID string
	// State is the column of the state: text, an enum or a number.
	State string
}

// Conflict is the refusal of a transition: the row is in neither of its states. [errors.Is] finds [ErrConflict].
type Conflict struct {
	From, To string // what was asked for
	State    string // where the row is; empty if it is NULL
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("%v: it is %q, and was to go from %q to %q", ErrConflict, e.State, e.From, e.To)
}

// Unwrap returns ErrConflict.
func (e *Conflict) Unwrap() error { return ErrConflict }

// Apply takes the row from one state to another. It returns false if it is there already, and what it then says
// stays true until the transaction ends; who brought it there, it does not know. A row that is
// elsewhere is a [*Conflict], and one that is not there [ErrAbsent]. While another transaction changes
// the row, Apply waits for its end.
//
// It knows where the row is, and not what has been asked before. A repeat that comes after the next step is a Conflict, and
// one that comes when the row is back where it begins, as an account that was suspended and is active again, is applied a
// second time. Where either can be, call Apply in an [Inbox]'s Do.
//
// Whether two states are one is the database's to say: in a column of numbers "2" is "2.00". In SQLite the column
// must have a type, or hold texts.
//
// id is what the driver takes for the column. The names of Transition's columns are yours to choose, not a
// caller's; they and the values are quoted all the same.
func (t Transition) Apply(ctx context.Context, tx Tx, id any, from, to string) (applied bool, err error) {
	if from == to {
		return false, invalid("a transition from %q to itself: it could not be told from its repeat", from)
	}
	if err := cmp.Or(checkUTF8("from", from), checkUTF8("to", to)); err != nil {
		return false, err
	}
	s, err := t.statements(tx.Dialect())
	if err != nil {
		return false, err
	}
	// Twice, as the row may come to where it is to start from between the two statements; then the
	// second has locked it.
	for range 2 {
		rows, err := tx.Exec(ctx, s.update, to, id, from, to)
		if err != nil || rows == 1 {
			return err == nil, err
		}
		if rows > 1 {
			return false, invalid("%d rows of %s have that %s: roll back, and name a column that is unique", rows, t.Table, t.ID)
		}
		var now seen
		found, err := tx.QueryRow(ctx, s.look, []any{id, from, to}, &now.state, &now.atFrom, &now.atTo)
		switch {
		case err != nil:
			return false, err
		case !found:
			return false, ErrAbsent
		case !now.atFrom || now.atTo:
			return false, t.notApplied(from, to, now)
		}
	}
	return false, ErrChanged
}

// seen is where a row is, and whether the database takes that for the states of a transition: it
// may write one in another way than the caller does.
type seen struct {
	state        *string // nil if it is NULL
	atFrom, atTo bool
}

// notApplied says why a row was not changed.
func (t Transition) notApplied(from, to string, now seen) error {
	switch {
	case now.atFrom && now.atTo:
		return invalid("a transition from %q to %q, which are one state in the column %s: it could not be told from its repeat", from, to, t.State)
	case now.atTo:
		return nil
	case now.state == nil:
		return &Conflict{From: from, To: to}
	case *now.state == from || *now.state == to:
		return invalid("the column %s has %q, but not as the text that it is compared with: give the column a type, or write texts", t.State, *now.state)
	default:
		return &Conflict{From: from, To: to, State: *now.state}
	}
}

type transitionStatements struct{ update, look string }

// statements name every column by its table, as SQLite takes a quoted name that is not a column for a text.
func (t Transition) statements(d Dialect) (transitionStatements, error) {
	names := [...]string{t.Table, t.ID, t.State}
	for i, name := range names {
		quoted, err := quote(name)
		if err != nil {
			return transitionStatements{}, err
		}
		names[i] = quoted
	}
	lock := " FOR NO KEY UPDATE" // as the update's: rows that refer to this one may be written meanwhile
	if d == SQLite {
		lock = "" // the update has locked the database, whether it found the row or not
	}
	return transitionStatements{
		update: d.statement("UPDATE %[1]s AS g SET %[3]s = $1 WHERE g.%[2]s = $2 AND g.%[3]s = $3 AND g.%[3]s <> $4", names[0], names[1], names[2]),
		look:   d.statement("SELECT CAST(g.%[3]s AS text), COALESCE(g.%[3]s = $2, FALSE), COALESCE(g.%[3]s = $3, FALSE) FROM %[1]s AS g WHERE g.%[2]s = $1%[4]s", names[0], names[1], names[2], lock),
	}, nil
}
