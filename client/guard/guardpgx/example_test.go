package guardpgx_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/client/guard/guardpgx"
)

// The effect and its row in one transaction of pgx, from the function that client.Do runs.
func ExampleTx() {
	ledger := guard.Inbox{Name: "ledger"}
	pay := func(ctx context.Context, pool *pgxpool.Pool, a *client.Attempt) (receipt string, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			entry, err := ledger.Do(ctx, guardpgx.Tx(tx), a.DownstreamKey("ledger"), nil, func() ([]byte, error) {
				_, err := tx.Exec(ctx, "INSERT INTO payments (order_id, cents) VALUES ($1, $2)", a.Key.ID, 4200)
				return []byte("receipt for " + a.Key.ID), err
			})
			receipt = string(entry.Outcome)
			return err
		})
		return receipt, err // what was not committed is an error
	}
	_ = pay
}
