// Package idemdtest gives tests an idemd that they reach over gRPC, as programs do.
package idemdtest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
)

// Serve serves a store until the test ends, and returns where.
func Serve(t testing.TB, backend store.Backend) (addr string) {
	t.Helper()
	srv, err := server.New(server.Config{Backend: backend, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().String()
}
