package guard

import "context"

// numbers are a table with one number for each of something, which only grows: what Sequence and Fence
// have in common.
type numbers struct {
	table
	of, column string // what has a number, and the number
}

func (n numbers) ddl(d Dialect) ([]string, error) {
	create, err := n.table.ddl(d, n.of, n.column+" BIGINT NOT NULL")
	return []string{create}, err
}

// raise sets the number where the one that is there stands in relation (< or <=) to it. Otherwise it
// returns the one that is there.
func (n numbers) raise(ctx context.Context, tx Tx, of string, number int64, relation string) (raised bool, there int64, err error) {
	t, err := n.check(n.of, of)
	if err != nil {
		return false, 0, err
	}
	// PostgreSQL locks the row even where the condition is false, so it stays as the query finds it.
	rows, err := tx.Exec(ctx, tx.Dialect().statement(
		"INSERT INTO %[1]s AS g (name, %[2]s, %[3]s) VALUES ($1, $2, $3) ON CONFLICT (name, %[2]s)"+
			" DO UPDATE SET %[3]s = excluded.%[3]s, recorded_at = excluded.recorded_at WHERE g.%[3]s %[4]s excluded.%[3]s",
		t, n.of, n.column, relation), n.name, of, number)
	if err != nil || rows == 1 {
		return err == nil, number, err
	}
	found, err := tx.QueryRow(ctx, tx.Dialect().statement("SELECT %[3]s FROM %[1]s WHERE name = $1 AND %[2]s = $2", t, n.of, n.column),
		[]any{n.name, of}, &there)
	if err == nil && !found {
		err = ErrChanged // deleted just now
	}
	return false, there, err
}
