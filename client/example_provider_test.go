package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// The provider keeps keys for two hours, and nobody can look up what it did. The reply to an
// attempt was lost: within the two hours it is sent again under its key, later it is not sent.
func ExampleProviderKeys() {
	clock := storetest.NewClock()
	s := storetest.NewMemory(clock)
	key := store.Key{Namespace: "default", Scope: "charge", ID: "order-1001"}
	charge := func() error {
		_, err := client.Do(context.Background(), s, key, nil, func(_ context.Context, a *client.Attempt) (string, error) {
			fmt.Println("sent", a.Key.ID, "under the key", a.DownstreamKey("charge")[:6])
			return "", errors.New("connection reset")
		}, client.ProviderKeys(2*time.Hour))
		return err
	}
	fmt.Println(charge())
	clock.Advance(time.Hour)
	fmt.Println(charge())
	clock.Advance(time.Hour)
	fmt.Println(errors.Is(charge(), store.ErrKeyUnresolved))
	// Output:
	// sent order-1001 under the key 6e01e5
	// connection reset
	// sent order-1001 under the key 6e01e5
	// connection reset
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
