package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guard"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// A payment is a row of our own database. Its attempt commits it, and then dies before it can say so. The next
// attempt is answered by the inbox: there is one payment.
func Example() {
	db, closeDB := exampleDB("CREATE TABLE payments (order_id TEXT, cents INTEGER)")
	defer closeDB()
	idemd := storetest.NewMemory(store.SystemClock{}) // elsewhere: client.Dial

	ledger := guard.Inbox{Name: "ledger"}
	migrate(db, ledger.DDL)
	pay := func(ctx context.Context, a *client.Attempt) (string, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return "", err
		}
		defer tx.Rollback()
		entry, err := ledger.Do(ctx, guard.SQLite.Tx(tx), a.DownstreamKey("ledger"), nil, func() ([]byte, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (?, ?)", a.Key.ID, 4200)
			return []byte("receipt of attempt " + fmt.Sprint(a.Number)), err
		})
		if err == nil {
			err = tx.Commit()
		}
		if a.Number == 1 {
			err = errors.Join(err, errors.New("killed")) // it is committed, and idemd is not told
		}
		return string(entry.Outcome), err
	}

	key := store.Key{Namespace: store.DefaultNamespace, Scope: "pay", ID: "order-1001", Entity: "customer-7"}
	for range 3 {
		result, err := client.Do(context.Background(), idemd, key, nil, pay)
		fmt.Println(result.Value, result.Replayed, err)
	}
	fmt.Println(count(db, "payments"), "payment")
	// Output:
	//  false killed
	// receipt of attempt 1 false <nil>
	// receipt of attempt 1 true <nil>
	// 1 payment
}

// A first attempt dies before it does anything, and the next one is told to check. The guard has looked: within its
// function no earlier attempt can have acted. So a "no" that is found out there is final.
func ExampleInbox_refusal() {
	db, closeDB := exampleDB("CREATE TABLE payments (order_id TEXT, cents INTEGER)")
	defer closeDB()
	idemd := storetest.NewMemory(store.SystemClock{}) // elsewhere: client.Dial

	ledger := guard.Inbox{Name: "ledger"}
	migrate(db, ledger.DDL)
	pay := func(_ context.Context, a *client.Attempt) (receipt string, err error) {
		if a.Number == 1 {
			return "", errors.New("killed")
		}
		err = inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			entry, err := ledger.Do(ctx, guard.SQLite.Tx(tx), a.DownstreamKey("ledger"), nil, func() ([]byte, error) {
				a.NothingFound()
				return nil, status.Error(codes.FailedPrecondition, "the account is closed")
			})
			receipt = string(entry.Outcome)
			return err
		})
		return receipt, err
	}

	key := store.Key{Namespace: store.DefaultNamespace, Scope: "pay", ID: "order-1001", Entity: "customer-7"}
	for range 3 {
		result, err := client.Do(context.Background(), idemd, key, nil, pay)
		fmt.Println(err, result.Replayed)
	}
	// Output:
	// killed false
	// rpc error: code = FailedPrecondition desc = the account is closed false
	// rpc error: code = FailedPrecondition desc = the account is closed true
}

// The app was restarted and made a fresh key for an order that is captured. The order knows, and
// the answer is that of the key that did it, for as long as the order lives.
func ExampleOnce() {
	db, closeDB := exampleDB("CREATE TABLE captures (order_id TEXT)")
	defer closeDB()
	captured := guard.Once{Name: "capture"}
	migrate(db, captured.DDL)

	capture := func(ctx context.Context, tx *sql.Tx, key, order string) (guard.Entry, error) {
		return captured.Do(ctx, guard.SQLite.Tx(tx), order, key, func() ([]byte, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO captures VALUES (?)", order)
			return []byte("receipt for " + key), err
		})
	}
	for _, key := range []string{"key-1", "key-1", "key-2"} {
		err := inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			entry, err := capture(ctx, tx, key, "order-1001")
			fmt.Printf("%s: %s, repeat: %v, done under %s\n", key, entry.Outcome, entry.Repeat, entry.Key)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(count(db, "captures"), "capture")
	// Output:
	// key-1: receipt for key-1, repeat: false, done under key-1
	// key-1: receipt for key-1, repeat: true, done under key-1
	// key-2: receipt for key-1, repeat: true, done under key-1
	// 1 capture
}

func ExampleTransition() {
	db, closeDB := exampleDB("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)", "INSERT INTO orders VALUES ('1', 'paid'), ('2', 'cancelled')")
	defer closeDB()
	orders := guard.Transition{Table: "orders", ID: "id", State: "state"}

	for _, order := range []string{"1", "1", "2", "3"} {
		err := inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			applied, err := orders.Apply(ctx, guard.SQLite.Tx(tx), order, "paid", "shipped")
			var conflict *guard.Conflict
			switch {
			case errors.As(err, &conflict):
				fmt.Println(order, "does not ship: it is", conflict.State)
				return nil
			case errors.Is(err, guard.ErrAbsent):
				fmt.Println(order, "is no order")
				return nil
			case err == nil:
				fmt.Println(order, "ships; now:", applied)
			}
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1 ships; now: true
	// 1 ships; now: false
	// 2 does not ship: it is cancelled
	// 3 is no order
}

// An account is suspended, then active again, and the first message is delivered once more: the account is where that message
// began, and by the row alone it would be suspended again. An Inbox around the transition knows the message.
func ExampleTransition_stateThatComesBack() {
	db, closeDB := exampleDB("CREATE TABLE accounts (id TEXT PRIMARY KEY, state TEXT)", "INSERT INTO accounts VALUES ('7', 'active')")
	defer closeDB()
	messages := guard.Inbox{Name: "accounts"}
	accounts := guard.Transition{Table: "accounts", ID: "id", State: "state"}
	migrate(db, messages.DDL)

	for _, message := range []struct{ id, from, to string }{
		{"1", "active", "suspended"}, {"2", "suspended", "active"}, {"1", "active", "suspended"},
	} {
		err := inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			g := guard.SQLite.Tx(tx)
			entry, err := messages.Do(ctx, g, message.id, nil, func() ([]byte, error) {
				_, err := accounts.Apply(ctx, g, "7", message.from, message.to)
				return []byte(message.to), err
			})
			fmt.Printf("message %s: %s, repeat: %v\n", message.id, entry.Outcome, entry.Repeat)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	var state string
	if err := db.QueryRowContext(context.Background(), "SELECT state FROM accounts").Scan(&state); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the account is", state)
	// Output:
	// message 1: suspended, repeat: false
	// message 2: active, repeat: false
	// message 1: suspended, repeat: true
	// the account is active
}

// Balances come late, twice and out of order.
func ExampleSequence() {
	db, closeDB := exampleDB("CREATE TABLE balances (account TEXT PRIMARY KEY, cents INTEGER)")
	defer closeDB()
	balances := guard.Sequence{Name: "balance"}
	migrate(db, balances.DDL)

	for _, event := range []struct{ version, cents int64 }{{1, 100}, {3, 300}, {2, 200}, {3, 300}} {
		err := inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			order, last, err := balances.Advance(ctx, guard.SQLite.Tx(tx), "account-7", event.version)
			if err != nil || order != guard.Newer {
				fmt.Println("version", event.version, "is left; applied is", last)
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO balances VALUES ('account-7', ?)", event.cents)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// version 2 is left; applied is 3
	// version 3 is left; applied is 3
}

// An attempt was paused past its lease, another one acted, and then the first goes on.
func ExampleFence() {
	db, closeDB := exampleDB()
	defer closeDB()
	fence := guard.Fence{Name: "ledger"}
	migrate(db, fence.DDL)

	for _, attempt := range []int64{1796000000000001, 1796000000000000} { // client.Attempt.Fence
		err := inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			if err := fence.Check(ctx, guard.SQLite.Tx(tx), "report-7", attempt); err != nil {
				return err
			}
			fmt.Println("acting")
			return nil
		})
		fmt.Println(errors.Is(err, guard.ErrStaleFence))
	}
	// Output:
	// acting
	// false
	// true
}

// What is older than any repeat can be is deleted in small transactions, until there is no more.
func ExampleInbox_Forget() {
	db, closeDB := exampleDB()
	defer closeDB()
	ledger := guard.Inbox{Name: "ledger"}
	migrate(db, ledger.DDL)

	const batch = 1000
	for deleted := int64(batch); deleted == batch; {
		err := inTx(db, func(ctx context.Context, tx *sql.Tx) (err error) {
			deleted, err = ledger.Forget(ctx, guard.SQLite.Tx(tx), 35*24*time.Hour, batch)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("deleted", deleted)
	}
	// Output: deleted 0
}

// The outbox: what is to be told of an effect commits with it, under an id that is stored. A relay publishes it under
// that id, as often as it takes; the id, which is the same each time, is what its receivers' inboxes know it by. An
// id that is made while publishing is another one each time, and none of them can.
func Example_outbox() {
	db, closeDB := exampleDB("CREATE TABLE payments (order_id TEXT)",
		"CREATE TABLE outbox (id TEXT PRIMARY KEY, body TEXT, sent BOOLEAN NOT NULL DEFAULT FALSE)")
	defer closeDB()
	ledger := guard.Inbox{Name: "ledger"}
	receipts := guard.Inbox{Name: "receipts"} // at the receiver's, in its own database
	migrate(db, ledger.DDL)
	ctx := context.Background()

	pay := func(a *client.Attempt) error {
		return inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			_, err := ledger.Do(ctx, guard.SQLite.Tx(tx), a.DownstreamKey("ledger"), nil, func() ([]byte, error) {
				_, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (?)", a.Key.ID)
				_, err2 := tx.ExecContext(ctx, "INSERT INTO outbox (id, body) VALUES (?, ?)", a.DownstreamKey("paid"), "paid: "+a.Key.ID)
				return nil, errors.Join(err, err2)
			})
			return err
		})
	}
	publish := func(id, body string) error { // to a broker, whose receiver is this:
		return inTx(db, func(ctx context.Context, tx *sql.Tx) error {
			entry, err := receipts.Do(ctx, guard.SQLite.Tx(tx), id, nil, func() ([]byte, error) {
				return nil, nil // send the receipt: see client/README.md, What nothing guards
			})
			fmt.Println(body, "is a repeat:", entry.Repeat)
			return err
		})
	}
	relay := func(dies bool) {
		var id, body string
		err := db.QueryRowContext(ctx, "SELECT id, body FROM outbox WHERE NOT sent LIMIT 1").Scan(&id, &body)
		if errors.Is(err, sql.ErrNoRows) {
			fmt.Println("all is sent")
			return
		}
		if err == nil {
			err = publish(id, body)
		}
		if err == nil && !dies { // it is published, and marked only then
			_, err = db.ExecContext(ctx, "UPDATE outbox SET sent = TRUE WHERE id = ?", id)
		}
		if err != nil {
			log.Fatal(err)
		}
	}

	for range 2 { // the second attempt is a repeat, and tells nobody anything
		if err := pay(&client.Attempt{Key: store.Key{ID: "order-1001"}}); err != nil {
			log.Fatal(err)
		}
	}
	relay(true)
	relay(false)
	relay(false)
	// Output:
	// paid: order-1001 is a repeat: false
	// paid: order-1001 is a repeat: true
	// all is sent
}

// exampleDB is a database in a file of its own. A transaction begins with the lock that it will need.
func exampleDB(statements ...string) (db *sql.DB, closeDB func()) {
	dir, err := os.MkdirTemp("", "idemd-example-")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			log.Fatal(err)
		}
	}
	return db, func() {
		if err := errors.Join(db.Close(), os.RemoveAll(dir)); err != nil {
			log.Fatal(err)
		}
	}
}

// migrate makes guards' tables.
func migrate(db *sql.DB, tables ...func(guard.Dialect) ([]string, error)) {
	for _, table := range tables {
		statements, err := table(guard.SQLite)
		if err != nil {
			log.Fatal(err)
		}
		for _, statement := range statements {
			if _, err := db.ExecContext(context.Background(), statement); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// inTx commits what f did, or rolls it back if it failed.
func inTx(db *sql.DB, f func(context.Context, *sql.Tx) error) error {
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func count(db *sql.DB, table string) (n int) {
	if err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		log.Fatal(err)
	}
	return n
}
