package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/client/internal/idemdtest"
	"github.com/idemd/idemd/client/internal/natstest"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// TestCommands runs what the tour of main.go says: an order is paid twice, and one receipt goes out.
func TestCommands(t *testing.T) {
	s := newShop(t)
	addr := idemdtest.Serve(t, s.idemd)
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
}

// TestMistakes has a command that cannot do what it is asked say why, and nothing else.
func TestMistakes(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	nowhere := "postgres://127.0.0.1:1/none"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"publish"}, `there is no command "publish"`},
		{[]string{"--database", nowhere, "pay"}, "Give pay ORDER KEY"},
		{[]string{"--database", nowhere, "pay", "order-1"}, "Give pay ORDER KEY"},
		{[]string{"--idemd", "127.0.0.1:1", "migrate"}, "Set DATABASE_URL or give --database"},
		{[]string{"pay", "order-1", "key-1"}, "Set DATABASE_URL or give --database"},
		{[]string{"relay"}, "Set DATABASE_URL or give --database"},
		{[]string{"--nats", "nats://user:secret@127.0.0.1:1,nats://secret@127.0.0.1:2", "work"}, "connecting to NATS"},
		{[]string{"--nats", "nats://user:secret/@127.0.0.1:1", "work"}, "connecting to NATS"},
	} {
		var out strings.Builder
		err := run(t.Context(), test.args, &out)
		if text := fmt.Sprint(err); err == nil || !strings.Contains(text, test.want) || strings.Contains(text, "secret") {
			t.Errorf("%q: %v, want %s", test.args, err, test.want)
		}
		if out.Len() > 0 {
			t.Errorf("%q printed %q", test.args, &out)
		}
	}
}

const commandVariable = "IDEMD_TEST_COMMAND" // makes the test binary the command

// TestIdemdAway has a command without an idemd say where it looked for one, and not wait for it for long. They are
// processes of their own, as what they could not tell idemd goes on in the background.
func TestIdemdAway(t *testing.T) {
	nats := natstest.Start(t)
	for _, command := range []string{"pay order-1 key-1", "work"} {
		args := append([]string{"--database", "postgres://127.0.0.1:1/none", "--nats", nats, "--idemd", "127.0.0.1:1"}, strings.Fields(command)...)
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env = append(os.Environ(), commandVariable+"=1")
		start := time.Now()
		text, err := cmd.CombinedOutput()
		if want := "outbox: idemd does not answer on 127.0.0.1:1; start it with: go run ./cmd/idemd serve"; err == nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %s (%v), want %s", command, text, err, want)
		}
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("%s took %v", command, took)
		}
	}
}

// TestUnpaid has no receipt printed of what was not paid.
func TestUnpaid(t *testing.T) {
	idemd := storetest.NewMemory(store.SystemClock{})
	if _, err := idemd.CreateNamespace(t.Context(), store.Namespace{Name: namespace, Retention: 7 * 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err := run(t.Context(), []string{"--database", "postgres://127.0.0.1:1/none", "--idemd", idemdtest.Serve(t, idemd), "pay", "order-1", "key-1"}, &out)
	if err == nil || out.Len() > 0 {
		t.Errorf("%v, and printed %q", err, &out)
	}
}

// TestHelp has the help not show what the environment holds: the database's URL may have a password.
func TestHelp(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://user:secret@127.0.0.1:1/none")
	var out strings.Builder
	if err := run(t.Context(), []string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) || strings.Contains(out.String(), "secret") {
		t.Errorf("%v\n%s", err, &out)
	}
}
