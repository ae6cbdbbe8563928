package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/client"
)

// patience bounds every wait of these tests. It only matters when something is wrong.
const patience = 60 * time.Second

// providerVariable makes the test binary the payments server, with a provider of that name.
const providerVariable = "PAYMENTS_TEST_PROVIDER"

var buildDir string

func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(providerVariable); ok {
		if err := beServer(name, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "IDEMD_") {
			_ = os.Unsetenv(name) // it would change the defaults of idemd
		}
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "payments-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(buildDir)
	if code := m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// beServer is what a child does: the server command, over a provider of the tests. It ends
// with its parent.
func beServer(name string, args []string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	var f serverFlags
	if err := f.parse(args); err != nil {
		return err
	}
	l, err := openLedger(f.ledger)
	if err != nil {
		return err
	}
	charge, ok := troubles[name]
	if !ok {
		return fmt.Errorf("there is no provider %q", name)
	}
	return serve(context.Background(), troubled{l, charge}, f, os.Stdout, os.Stderr)
}

// A troubled provider is the ledger with something that goes wrong as it charges.
type troubled struct {
	*ledger
	trouble func(ctx context.Context, l *ledger, e entry) (entry, error)
}

func (p troubled) charge(ctx context.Context, e entry) (entry, error) {
	return p.trouble(ctx, p.ledger, e)
}

// What goes wrong in a child. Each says on standard output how far it is.
var troubles = map[string]func(ctx context.Context, l *ledger, e entry) (entry, error){
	"none": func(ctx context.Context, l *ledger, e entry) (entry, error) { return l.charge(ctx, e) },
	// It is killed after the charge and before anything is recorded.
	"stuck": func(ctx context.Context, l *ledger, e entry) (entry, error) {
		_, err := l.charge(ctx, e)
		say("charged", e.Reference, err)
		select {}
	},
	// It is paused before the charge, and heeds its context.
	"before": func(ctx context.Context, l *ledger, e entry) (entry, error) {
		say("charging", e.Reference, nil)
		<-ctx.Done()
		say("cancelled", e.Reference, context.Cause(ctx))
		return l.charge(ctx, e)
	},
	// It is paused after the charge.
	"after": func(ctx context.Context, l *ledger, e entry) (entry, error) {
		e, err := l.charge(ctx, e)
		say("charged", e.Reference, err)
		<-ctx.Done()
		say("cancelled", e.Reference, context.Cause(ctx))
		return e, err
	},
	// It is paused before the charge, and charges whatever its context says.
	"heedless": func(ctx context.Context, l *ledger, e entry) (entry, error) {
		say("charging", e.Reference, nil)
		<-ctx.Done()
		say("cancelled", e.Reference, context.Cause(ctx))
		return l.charge(context.WithoutCancel(ctx), e)
	},
}

func say(what, reference string, err error) { fmt.Printf("%s %s %v\n", what, reference, err) }

// A child is a server as a process of its own.
type child struct {
	cmd    *exec.Cmd
	addr   string
	lines  chan string // what it says on standard output
	stderr bytes.Buffer
	end    func()
}

// start starts a process and returns when it says where it serves.
func start(t *testing.T, cmd *exec.Cmd, servesOn string) *child {
	t.Helper()
	c := &child{cmd: cmd, lines: make(chan string, 1000)}
	cmd.Stderr = &c.stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // closed when this process ends
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	c.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		for range c.lines { // it is all read before Wait closes the pipe
		}
		_ = cmd.Wait()
	})
	t.Cleanup(c.end)
	c.addr = strings.TrimPrefix(c.expect(t, servesOn), servesOn)
	return c
}

// expect returns the next line, which has to begin like that.
func (c *child) expect(t *testing.T, prefix string) string {
	t.Helper()
	select {
	case text, ok := <-c.lines:
		if !ok {
			c.end()
			t.Fatalf("the process ended before it said %q:\n%s", prefix, c.stderr.String())
		}
		if !strings.HasPrefix(text, prefix) {
			t.Fatalf("the process said %q, want %q", text, prefix)
		}
		return text
	case <-time.After(patience):
		t.Fatalf("the process has not said %q", prefix)
	}
	return ""
}

// kill ends the process as kill -9 does, and returns when it is gone.
func (c *child) kill() { c.end() }

// startPayments starts the payments server with a lease of a second.
func startPayments(t *testing.T, provider, idemd, ledger string, args ...string) *child {
	t.Helper()
	args = append([]string{"--addr=127.0.0.1:0", "--lease=1s", "--idemd=" + idemd, "--ledger=" + ledger}, args...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), providerVariable+"="+provider)
	return start(t, cmd, servesOn)
}

// idemdBinary builds idemd once.
var idemdBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "idemd")
	out, err := exec.Command("go", "build", "-o", path, "github.com/idemd/idemd/cmd/idemd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func startIdemd(t *testing.T, dir string) *child {
	t.Helper()
	path, err := idemdBinary()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, exec.Command(path, "serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--data-dir="+dir), "idemd serves on ")
}

func dialIdemd(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
