package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/idemd/idemd/server"
)

// TestCommands runs what the tour of main.go says: an order is paid twice, and one receipt goes out.
func TestCommands(t *testing.T) {
	s := newShop(t)
	addr := s.serveIdemd()
	command := func(out io.Writer, args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			return run(ctx, append([]string{"--database", s.dsn, "--nats", s.nats, "--idemd", addr}, args...), out)
		}
	}
	var paid strings.Builder
	for _, args := range [][]string{{"migrate"}, {"pay", "order-1", "key-1"}, {"pay", "order-1", "key-2"}} {
		if err := command(&paid, args...)(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := strings.Repeat("receipt for order-1, by key-1\n", 2); paid.String() != want {
		t.Errorf("the payments were answered %q, want %q", &paid, want)
	}

	sent, out := io.Pipe()
	defer sent.Close()
	stopRelay, stopWork := s.start(command(io.Discard, "relay")), s.start(command(out, "work"))
	line, err := bufio.NewReader(sent).ReadString('\n')
	if !strings.HasPrefix(line, "receipt: 4200 cents for order-1, under the key ") || err != nil {
		t.Errorf("work printed %q, %v", line, err)
	}
	s.untilSent()
	stopRelay()
	stopWork()
	s.checkPublished(eventOf("key-1"))

	err = command(io.Discard, "publish")(t.Context())
	if want := `there is no command "publish"`; !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// serveIdemd serves the shop's idemd.
func (s *shop) serveIdemd() (addr string) {
	srv, err := server.New(server.Config{Backend: s.idemd, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	s.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served); err != nil {
			s.Error(err)
		}
	})
	return lis.Addr().String()
}
