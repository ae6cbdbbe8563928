package guard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idemd/idemd/client/guard"
)

// beginOpen begins a transaction that waits for no lock for long, and is rolled back in the end, so that a test that fails ends.
func (d *database) beginOpen(t *testing.T) transaction {
	t.Helper()
	tx, err := d.begin(context.Background(), d.levels[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.rollback() })
	if err := run(tx, "SET LOCAL lock_timeout = '5s'"); err != nil {
		t.Fatal(err)
	}
	return tx
}

// A program that starts repeats the DDL while another one carries a key out: it waits for nobody, and nobody waits
// for it, though it is not committed. (SQLite has one writer, whoever that is.)
func TestDDLWhileInUse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{overSQL, overPGX, overCRDB} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			one := d.beginOpen(t)
			if _, err := enter(one, inbox, "one", nil, nil); err != nil {
				t.Fatal(err)
			}
			migration := d.beginOpen(t)
			for _, statement := range ddl(t, d.dialect) {
				if err := run(migration, statement); err != nil {
					t.Fatal(err)
				}
			}
			two := d.beginOpen(t)
			_, err := enter(two, inbox, "two", nil, nil)
			for name, err := range map[string]error{"two": err, "two's commit": two.commit(), "one's": one.commit(), "the migration's": migration.commit()} {
				wantEqual(t, name, err, nil)
			}
		})
	}
}

// A process that is paused inside its transaction, or a machine that is lost, is cut off by the database, which is
// told to: the next attempt goes on, and what the first did is gone with its transaction, also if it wakes up.
func TestPausedInTransaction(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{overSQL, overPGX, overCRDB} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			for name, act := range acts {
				d.clear(t)
				d.do(t, newOrder)
				paused := d.beginOpen(t)
				if _, err := act(paused, 1, func() {}); err != nil {
					t.Fatal(err)
				}
				// As a setting of the connection it would count from its first statement on, and this process be cut off if it is slow.
				if err := run(paused, "SET LOCAL idle_in_transaction_session_timeout = '100ms'"); err != nil {
					t.Fatal(err)
				}
				var answer string
				d.do(t, func(tx guard.Tx) (err error) {
					if err := run(tx, "SET LOCAL lock_timeout = '30s'"); err != nil {
						return err
					}
					answer, err = act(tx, 2, func() {})
					return err
				})
				wantEqual(t, name+": "+answer, strings.HasPrefix(answer, "repeat false"), true)
				if err := effect(paused, "x", 1); err == nil {
					t.Errorf("%s: the paused one goes on", name)
				}
				if err := paused.commit(); err == nil {
					t.Errorf("%s: the paused one commits", name)
				}
				wantEqual(t, name+": effects", d.effects(t, "x"), 1)
				wantEqual(t, name+": the effect is of attempt", d.value(t, "x"), 2)
			}
		})
	}
}

// Two repeats, each of which has written a row that refers to the order, do not wait for each other: neither is to
// change what the other refers to.
func TestTransitionOfReferredRow(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{overSQL, overPGX} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			d.do(t, func(tx guard.Tx) error {
				return errors.Join(run(tx, "CREATE TABLE items (order_id TEXT REFERENCES orders)"), run(tx, "INSERT INTO orders VALUES ('x', 'paid')"))
			})
			both := []transaction{d.beginOpen(t), d.beginOpen(t)}
			for _, tx := range both {
				wantEqual(t, "an item", run(tx, "INSERT INTO items VALUES ('x')"), nil)
			}
			applied, err := orders.Apply(t.Context(), both[0], "x", "new", "paid")
			wantEqual(t, "applied", applied, false)
			wantEqual(t, "error", err, nil)
			for _, tx := range both {
				wantEqual(t, "commit", tx.commit(), nil)
			}
		})
	}
}
