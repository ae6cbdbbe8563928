// Package guardpgx lets the guards of package guard use transactions of pgx.
package guardpgx

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/client/guard"
)

// Tx lets guards use a transaction of pgx, on PostgreSQL or CockroachDB, which take the same statements.
// One that stands for a savepoint will do if the effect is in it too: both go if it is rolled back.
func Tx(tx pgx.Tx) guard.Tx { return pgxTx{tx} }

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) Dialect() guard.Dialect { return guard.PostgreSQL }

func (t pgxTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) QueryRow(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	err := t.tx.QueryRow(ctx, query, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
