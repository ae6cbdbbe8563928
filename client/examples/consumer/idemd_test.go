package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/idemdtest"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startIdemd serves an embedded store with the namespace of orders.
func startIdemd(t *testing.T) (addr string) {
	t.Helper()
	embedded, err := pebblestore.Open(t.TempDir(), pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after it is served no more
		if err := embedded.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err = embedded.CreateNamespace(t.Context(), store.Namespace{Name: "orders", Retention: 15 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return idemdtest.Serve(t, embedded)
}

func dial(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Drain(context.Background()), c.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}
