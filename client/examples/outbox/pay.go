package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/store"
)

// paid has an order paid once, whatever keys it is asked for under.
var paid = guard.Once{Name: "pay"}

// payment is a row, and the body of the event about it.
type payment struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// migrate makes the tables. In earnest these statements are among your migrations.
func migrate(ctx context.Context, db *sql.DB) error {
	statements := []string{"CREATE TABLE IF NOT EXISTS payments (order_id TEXT NOT NULL, cents BIGINT NOT NULL)", outboxTable}
	guards, err := paid.DDL(guard.PostgreSQL)
	if err != nil {
		return err
	}
	for _, statement := range append(statements, guards...) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// request has an order paid, under the key that the app sent.
func request(ctx context.Context, s store.Store, db *sql.DB, order, key string) (receipt string, err error) {
	p := payment{Order: order, Cents: 4200}
	result, err := client.Do(ctx, s, store.Key{Namespace: namespace, Scope: "pay", ID: key}, order,
		func(ctx context.Context, a *client.Attempt) (string, error) { return pay(ctx, db, a, p) })
	return result.Value, err
}

// pay commits the payment, its guard and the event about it, or none of them. It may run again after an attempt that
// died at any point.
func pay(ctx context.Context, db *sql.DB, a *client.Attempt, p payment) (receipt string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	entry, err := paid.Do(ctx, guard.PostgreSQL.Tx(tx), p.Order, a.DownstreamKey("pay"), func() ([]byte, error) {
		return insert(ctx, tx, a, p)
	})
	if err != nil {
		return "", err // rolled back: nothing happened here
	}
	return string(entry.Outcome), tx.Commit() // answer only what is committed
}

func insert(ctx context.Context, tx *sql.Tx, a *client.Attempt, p payment) (receipt []byte, err error) {
	if _, err := tx.ExecContext(ctx, "INSERT INTO payments (order_id, cents) VALUES ($1, $2)", p.Order, p.Cents); err != nil {
		return nil, err
	}
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "receipt for %s, by %s", p.Order, a.Key.ID), announce(ctx, tx, "paid", a.DownstreamKey("paid"), body)
}
