package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// What [client.Do] and a [client.Guard] do for a caller, by hand: whoever claims by itself
// renews, counts the lease, and tells errors that prove nothing from those that are final.
func ExampleClient_Claim() {
	addr, stop := startServer() // elsewhere: idemd serve
	defer stop()
	c, err := client.Dial(addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	key := store.Key{Namespace: "default", Scope: "charge", ID: "order-1001"}
	for _, attempt := range []string{"attempt-1", "attempt-2"} {
		if err := chargeOnce(context.Background(), c, key, attempt); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// charging
	// done: charged 42 EUR
	// done before: charged 42 EUR
}

// chargeOnce charges unless somebody has, is at it, or may have.
func chargeOnce(ctx context.Context, c *client.Client, key store.Key, attempt string) error {
	sent := time.Now()
	answer, err := c.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: attempt})
	switch {
	case err != nil:
		return err // refused, or not known: do not act
	case answer.Completed != nil:
		fmt.Printf("done before: %s\n", answer.Completed.Outcome.Body)
		return nil
	case answer.Granted == nil:
		return errors.New("another attempt holds the key, or somebody must settle it first")
	case answer.Granted.Unsettled:
		return errors.New("an earlier attempt may have acted: check first") // see README.md, What an answer asks of you
	}

	g := answer.Granted
	acting, cancel := context.WithDeadline(ctx, sent.Add(g.HeldFor+g.LeaseRemaining-time.Second))
	defer cancel()
	receipt, err := charge(acting, g.Fence)
	if err != nil { // it may have happened
		_, releaseErr := c.Release(ctx, store.ReleaseRequest{
			Key: key, AttemptID: attempt, Fence: g.Fence, Effect: store.EffectUnknown,
		})
		return errors.Join(err, releaseErr)
	}
	_, err = c.Complete(ctx, store.CompleteRequest{
		Key: key, AttemptID: attempt, Fence: g.Fence,
		Outcome: &store.Outcome{Body: receipt, BodyType: "text/plain"},
	})
	if err == nil {
		fmt.Printf("done: %s\n", receipt)
	}
	return err // unavailable: send the same Complete again
}

// charge hands the fence on to whoever is charged with the effect.
func charge(ctx context.Context, _ int64) ([]byte, error) {
	fmt.Println("charging")
	return []byte("charged 42 EUR"), ctx.Err()
}

// startServer serves a store in memory on a free port until stop is called.
func startServer() (addr string, stop func()) {
	srv, err := server.New(server.Config{Backend: storetest.NewMemory(store.SystemClock{})})
	if err != nil {
		log.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	return lis.Addr().String(), func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served); err != nil {
			log.Fatal(err)
		}
	}
}
