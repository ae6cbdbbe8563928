package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// order is the key of an intent: made from what is the same for every repeat of it.
var order = store.Key{Namespace: "default", Scope: "charge", ID: "order-1001", Entity: "customer-7"}

// Whoever comes second is told what came of it.
func ExampleDo() {
	addr, stop := startServer() // elsewhere: idemd serve
	defer stop()
	c, err := client.Dial(addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for range 2 {
		result, err := client.Do(context.Background(), c, order, "42 EUR",
			func(ctx context.Context, a *client.Attempt) (string, error) {
				fmt.Println("charging, attempt", a.Number)
				return "receipt 7", nil
			})
		fmt.Println(result.Value, result.Replayed, err)
	}
	// The same key for another request is a bug of the caller's.
	_, err = client.Do(context.Background(), c, order, "43 EUR",
		func(context.Context, *client.Attempt) (string, error) { panic("never runs") })
	fmt.Println(errors.Is(err, store.ErrFingerprintMismatch))
	// Output:
	// charging, attempt 1
	// receipt 7 false <nil>
	// receipt 7 true <nil>
	// true
}

// Without a network: the store is in this process, which is then the only one to use it.
func ExampleDo_embedded() {
	dir, err := os.MkdirTemp("", "idemd-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	embedded, err := pebblestore.Open(dir, pebblestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer embedded.Close()
	s := store.NewWaiter(embedded, store.WaiterOptions{}) // for client.Wait
	defer s.Close()

	for range 2 {
		result, err := client.Do(context.Background(), s, order, nil,
			func(context.Context, *client.Attempt) (map[string]int, error) {
				return map[string]int{"charged": 42}, nil // stored as JSON
			})
		fmt.Println(result.Value["charged"], result.Replayed, err)
	}
	// Output:
	// 42 false <nil>
	// 42 true <nil>
}

// The provider charged, and its reply was lost. Nobody may charge again before somebody has
// looked: Recover looks it up by our own reference.
func ExampleRecover() {
	s, stop := memory()
	defer stop()
	charges := map[string]string{} // at the provider
	act := func(_ context.Context, a *client.Attempt) (string, error) {
		fmt.Println("charging")
		charges[a.Key.ID] = "receipt 7"
		return "", errors.New("connection reset")
	}
	find := func(_ context.Context, a *client.Attempt) (string, bool, error) {
		fmt.Println("looking it up")
		receipt, ok := charges[a.Key.ID]
		return receipt, ok, nil
	}

	_, err := client.Do(context.Background(), s, order, nil, act, client.Recover(find))
	fmt.Println(err)
	result, err := client.Do(context.Background(), s, order, nil, act, client.Recover(find))
	fmt.Println(result.Value, err)
	// Output:
	// charging
	// connection reset
	// looking it up
	// receipt 7 <nil>
}

// Nothing was sent, so nothing happened: the next attempt runs as the first one would have.
func ExampleNoEffect() {
	s, stop := memory()
	defer stop()
	for _, open := range []bool{false, true} {
		result, err := client.Do(context.Background(), s, order, nil,
			func(_ context.Context, a *client.Attempt) (string, error) {
				if !open {
					return "", client.NoEffect(errors.New("the provider is closed"))
				}
				return fmt.Sprintf("attempt %d has to check first: %v", a.Number, a.Unsettled), nil
			})
		fmt.Println(result.Value, err)
	}
	// Output:
	//  the provider is closed
	// attempt 2 has to check first: false <nil>
}

// When a process ends, the order is: the server stops, what could not be recorded at once
// is recorded, and then the connection to idemd is closed.
func ExampleDrain() {
	addr, stopStore := startServer()
	defer stopStore()
	c, err := client.Dial(addr)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(client.NewGuard(c, client.NoOwner()).ServerOptions()...)
	_, stopServer := servePayments(server, &provider{})

	stopServer() // grpc.Server.GracefulStop: the handlers end
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	fmt.Println(client.Drain(ctx)) // no longer than this process has
	fmt.Println(c.Close())
	// Output:
	// <nil>
	// <nil>
}
