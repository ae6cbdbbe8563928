// Command outbox takes payments in a database, PostgreSQL, and has everybody who should know of one told through
// a queue, NATS JetStream. Whatever is repeated on the way, there is one payment and one receipt.
//
//	nats-server --jetstream --addr 127.0.0.1
//	go run ./cmd/idemd serve
//	go run ./cmd/idemd namespace create shop --retention 7d
//	createdb shop                      # as a user of PostgreSQL who may; the URL below names none, which is $PGUSER or your own name
//	cd client/examples/outbox
//	export DATABASE_URL='postgres://localhost/shop?idle_in_transaction_session_timeout=60s' # longer than the relay may wait for its broker
//	go run . migrate
//	go run . relay &                   # as many as you like: one works, the others wait
//	go run . work &                    # as many as you like
//	go run . pay order-1001 key-1      # as often as you like
//	go run . pay order-1001 key-2      # a restarted app's fresh key
//
// It is a module of its own, so that its library, watermill, is in the go.sum of nobody who uses idemd.
//
// # Tour
//
//   - pay.go: the payment, its guard and the event about it, in one transaction.
//   - outbox.go: the event on its way into the table, and from there to the queue, under the id that was stored.
//   - queue.go: the stream of events.
//   - worker.go: from the queue to the consumer of package client, which carries each event out once.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// namespace is idemd's for all keys here: those of payments, and those of events.
const namespace = "shop"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:], os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "outbox:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("outbox", flag.ContinueOnError)
	flags.SetOutput(out)
	database := flags.String("database", "", "`URL` of the database (that of DATABASE_URL)")
	natsURL := flags.String("nats", nats.DefaultURL, "where NATS serves")
	idemd := flags.String("idemd", "127.0.0.1:7600", "where idemd serves")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch flags.Arg(0) {
	case "migrate":
		return withDatabase(*database, func(db *sql.DB) error { return migrate(ctx, db) })
	case "pay":
		order, key := flags.Arg(1), flags.Arg(2)
		if order == "" || key == "" {
			return errors.New("pay what, and under which key? Give pay ORDER KEY")
		}
		return withDatabase(*database, func(db *sql.DB) error {
			return withIdemd(*idemd, func(s store.Store) error {
				receipt, err := request(ctx, s, db, order, key)
				if err == nil {
					_, err = fmt.Fprintln(out, receipt)
				}
				return err
			})
		})
	case "relay":
		return withDatabase(*database, func(db *sql.DB) error {
			return withQueue(ctx, *natsURL, func(q *queue) error {
				return relay{db: db, to: q, patience: 30 * time.Second}.run(ctx)
			})
		})
	case "work":
		return withIdemd(*idemd, func(s store.Store) error {
			return withQueue(ctx, *natsURL, func(q *queue) error {
				return work(ctx, q, s, func(key string, p payment) error {
					_, err := fmt.Fprintf(out, "receipt: %d cents for %s, under the key %s\n", p.Cents, p.Order, key)
					return err
				})
			})
		})
	default:
		return fmt.Errorf("there is no command %q: give migrate, pay ORDER KEY, relay or work", flags.Arg(0))
	}
}

func withDatabase(url string, f func(*sql.DB) error) error {
	if url = cmp.Or(url, os.Getenv("DATABASE_URL")); url == "" {
		return errors.New("which database? Set DATABASE_URL or give --database")
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

func withIdemd(addr string, f func(store.Store) error) error {
	c, err := client.Dial(addr)
	if err != nil {
		return err
	}
	err = f(c)
	patience := 10 * time.Second
	if errors.Is(err, store.ErrUnavailable) {
		patience = time.Second // what idemd is not told by then ends with its lease
		err = fmt.Errorf("idemd does not answer on %s; start it with: go run ./cmd/idemd serve (%w)", addr, err)
	}
	draining, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(err, client.Drain(draining), c.Close())
}

func withQueue(ctx context.Context, url string, f func(*queue) error) error {
	q, closeQueue, err := openQueue(ctx, url)
	if err != nil {
		return err
	}
	defer closeQueue()
	return f(q)
}
