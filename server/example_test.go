package server_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// A server in a program of your own: it serves the embedded store until it is shut down,
// and the store is closed last.
func Example() {
	parent, err := os.MkdirTemp("", "idemd-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	backend, err := pebblestore.Open(filepath.Join(parent, "data"), pebblestore.Options{
		Fatal: func(err error) { log.Fatal(err) }, // the store has stopped, so the process must
	})
	if err != nil {
		log.Fatal(err)
	}
	srv, err := server.New(server.Config{Backend: backend})
	if err != nil {
		log.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()

	if err := claimOne(lis.Addr().String()); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // for calls that are running
	defer cancel()
	if err := errors.Join(srv.Shutdown(ctx), <-served, backend.Close()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("stopped")
	// Output:
	// granted attempt 1
	// stopped
}

func claimOne(addr string) error {
	c, err := client.Dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	answer, err := c.Claim(context.Background(), store.ClaimRequest{
		Key: store.Key{Namespace: "default", ID: "order-1001"}, AttemptID: "attempt-1",
	})
	if err == nil && answer.Granted != nil {
		fmt.Println("granted attempt", answer.Granted.AttemptNumber)
	}
	return err
}
