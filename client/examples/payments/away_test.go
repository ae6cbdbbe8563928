package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/idemd/idemd/proto/examples/payments/v1"
)

const nowhere = "127.0.0.1:1" // nobody listens there

// A server starts without an idemd, and says so; and so does a caller whose charges it keeps waiting.
func TestIdemdAway(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ arg, want string }{
		{"--hold", "payments: idemd does not answer on 127.0.0.1:1, so every charge is refused until it does; start it with: go run ./cmd/idemd serve"},
		{"--observe", "payments: idemd does not answer on 127.0.0.1:1, so nothing is observed until it does"},
		{"--unguarded", ""},
	} {
		server := startPayments(t, "none", nowhere, filepath.Join(t.TempDir(), "ledger"), test.arg)
		if test.arg == "--hold" {
			checkCallerSaysThatItWaits(t, server.addr)
		}
		server.kill()
		if noted := server.stderr.String(); !strings.HasPrefix(noted, test.want) || noted != "" && test.want == "" {
			t.Errorf("%s: the server noted %q, want %q", test.arg, noted, test.want)
		}
	}
}

func checkCallerSaysThatItWaits(t *testing.T, addr string) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	notes, noted := io.Pipe()
	called := make(chan error, 1)
	go func() {
		called <- run(ctx, []string{"caller", "--addr=" + addr}, io.Discard, noted)
		_ = noted.Close()
	}()
	text, err := bufio.NewReader(notes).ReadString('\n')
	if want := "payments: a charge has no answer after 1s: the service may be asking an idemd that does not answer;"; !strings.HasPrefix(text, want) {
		t.Errorf("the caller noted %q (%v), want %q", text, err, want)
	}
	end()
	if err := <-called; err == nil {
		t.Error("a caller that is ended before it is answered reports no error")
	}
}

// A caller tells a service that answers, and cannot show what was charged, from none.
func TestCallerSaysWhatAnswers(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterPaymentsServiceServer(server, pb.UnimplementedPaymentsServiceServer{})
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()
	for addr, want := range map[string]string{
		nowhere:                  "no payments service answers on " + nowhere,
		listener.Addr().String(): "what answers on " + listener.Addr().String() + " has no method ListCharges",
	} {
		err := run(t.Context(), []string{"caller", "--addr=" + addr}, io.Discard, io.Discard)
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
