package guard

import (
	"cmp"
	"context"
)

// Sequence applies what is newer and leaves what is not: events of one entity that come late, twice or out of
// order. It does not wait for what is missing between. The zero value is ready for use, once its table is there.
type Sequence struct {
	// Table has a row for each entity, see DDL. "idemd_sequence" if empty.
	Table string
	// Name is what is numbered, such as "balance". 255 bytes at most; it may be empty.
	Name string
}

// Order is how a number stands to the last one that was applied.
type Order int

// The orders. The zero value applies nothing.
const (
	Older Order = -1 // something newer was applied: leave it
	Same  Order = 0  // it was applied: a repeat
	Newer Order = 1  // apply it
)

func (s Sequence) numbers() numbers {
	return numbers{table{s.Table, "idemd_sequence", s.Name}, "entity", "number"}
}

// DDL returns the statements that make the table, for your migrations; they can be repeated.
// The error is [ErrInvalid], for a bad name.
//
// Nothing is forgotten by its age, as without its row an entity's oldest event is new. The table has one row for each
// entity, and does not grow with events. A row goes with its entity, see Forget.
func (s Sequence) DDL(d Dialect) ([]string, error) { return s.numbers().ddl(d) }

// Advance is asked before an event is applied, in the same transaction, and remembers its number if it
// is [Newer]: then apply it. last is the number that is remembered now. While another transaction
// advances the entity, Advance waits for its end.
//
// entity has 1 to 255 bytes of UTF-8. number is any at first, and greater for what is newer, such as the
// row's version that the event carries; a time is not: two events may have the same.
func (s Sequence) Advance(ctx context.Context, tx Tx, entity string, number int64) (order Order, last int64, err error) {
	raised, last, err := s.numbers().raise(ctx, tx, entity, number, "<")
	switch {
	case err != nil:
		return Same, 0, err
	case raised:
		return Newer, number, nil
	}
	return Order(cmp.Compare(number, last)), last, nil
}

// Forget deletes the entity's row, in the transaction that deletes the entity itself, and reports whether there was one. No event
// of it may come after that: the first to come would be applied, whatever its number.
func (s Sequence) Forget(ctx context.Context, tx Tx, entity string) (bool, error) {
	return s.numbers().forget(ctx, tx, "entity", entity)
}
