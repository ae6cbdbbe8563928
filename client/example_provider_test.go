package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// The provider keeps keys for two hours, and nobody can look up what it did. The reply to an
// attempt was lost: within the two hours it is sent again under its key, later it is not sent.
func ExampleProviderKeys() {
	s, stop := memory()
	defer stop()
	charge := func(id string, age time.Duration) error {
		key := store.Key{Namespace: "default", Scope: "charge", ID: id}
		_, err := client.Do(context.Background(), s, key, nil, func(_ context.Context, a *client.Attempt) (string, error) {
			fmt.Println("sent", id, "under the key", a.DownstreamKey("charge")[:6])
			return "", errors.New("connection reset")
		}, client.ProviderKeys(2*time.Hour), client.IntentTime(time.Now().Add(-age)))
		return err
	}
	for range 2 {
		fmt.Println(charge("order-1001", time.Minute))
	}
	for range 2 {
		fmt.Println(errors.Is(charge("order-1000", 3*time.Hour), store.ErrKeyUnresolved))
	}
	// Output:
	// sent order-1001 under the key 6e01e5
	// connection reset
	// sent order-1001 under the key 6e01e5
	// connection reset
	// sent order-1000 under the key 233093
	// false
	// true
}

// A mail that nobody can look up, and of which a second one is worse than none.
func ExampleRecordFirst() {
	s, stop := memory()
	defer stop()
	mail := store.Key{Namespace: "default", Scope: "mail", ID: "order-1001"}
	for range 2 {
		sent, err := client.Do(context.Background(), s, mail, nil, func(context.Context, *client.Attempt) (string, error) {
			fmt.Println("sending")
			return "sent", nil
		}, client.RecordFirst("handed over"))
		fmt.Println(sent.Value, sent.RecordedFirst, err)
	}
	// Output:
	// sending
	// sent false <nil>
	// handed over true <nil>
}
