package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// One attempt to do a thing that must not happen twice.
func ExampleDial() {
	c, err := client.Dial("127.0.0.1:7600")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx := context.Background()
	key := store.Key{Namespace: "default", Scope: "charge", ID: "order-1001"}
	answer, err := c.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "5f0c9d1e"})
	switch {
	case err != nil:
		log.Fatal(err) // refused, or not known: do not act
	case answer.Completed != nil:
		fmt.Printf("done before: %s\n", answer.Completed.Outcome.Body)
	case answer.Granted != nil:
		receipt := []byte("charged 42 EUR") // act here; check first if answer.Granted.Unsettled
		_, err = c.Complete(ctx, store.CompleteRequest{
			Key: key, AttemptID: "5f0c9d1e", Fence: answer.Granted.Fence,
			Outcome: &store.Outcome{Body: receipt, BodyType: "text/plain"},
		})
		if err != nil {
			log.Fatal(err)
		}
	default:
		fmt.Println("another attempt holds the key, or somebody must settle it first")
	}
}
