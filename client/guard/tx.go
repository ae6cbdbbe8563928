package guard

import (
	"context"
	"database/sql"
	"errors"
)

// Tx is an open transaction of the caller's. [Dialect.Tx] makes one of database/sql's, guardpgx.Tx one
// of pgx's; another driver needs these three methods. As the transaction, it is for one goroutine at a time.
type Tx interface {
	Dialect() Dialect
	// Exec runs a statement and returns how many rows it wrote.
	Exec(ctx context.Context, statement string, args ...any) (rows int64, err error)
	// QueryRow runs a query for one row at most and puts it into dest. found is false if there is none.
	QueryRow(ctx context.Context, query string, args []any, dest ...any) (found bool, err error)
}

type sqlTx struct {
	tx      *sql.Tx
	dialect Dialect
}

func (t sqlTx) Dialect() Dialect { return t.dialect }

func (t sqlTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	err := t.tx.QueryRowContext(ctx, query, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
