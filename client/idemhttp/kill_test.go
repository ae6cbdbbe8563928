package idemhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/client/internal/idemdtest"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// The test binary is the serving process if killVariable is set: to the step at which it stands
// still to be killed, its mode, the address of idemd and the ledger, each after a comma.
const killVariable = "IDEMHTTP_TEST_KILL"

// patience bounds every wait of these tests. It only matters when something is wrong.
const patience = time.Minute

// The modes say what a handler does about an attempt that may have acted.
const (
	blind  = "blind"  // nothing
	checks = "checks" // it looks into the ledger if it is told to
	keyed  = "keyed"  // the ledger takes one entry per downstream key
	held   = "held"   // its policy is Hold
)

// The steps between a grant and an answer.
const (
	claimed   = "claimed"   // granted, and nothing done
	acted     = "acted"     // the effect is there, and the handler has not returned
	recording = "recording" // the handler has returned, and nothing is stored
	recorded  = "recorded"  // it is stored, and nothing is answered
)

// TestKilled kills the serving process, as kill -9 does, at every step between a grant and an
// answer, and sends the request again to another process.
func TestKilled(t *testing.T) {
	idemd := idemdtest.Serve(t, storetest.NewMemory(store.SystemClock{}))
	ledger := ledger(t.TempDir() + "/ledger")
	var repeats sync.WaitGroup
	defer repeats.Wait()
	for mode, wants := range map[string]map[string]killedWant{
		blind:  {claimed: {201, 1}, acted: {201, 2}, recording: {201, 2}, recorded: {201, 1}},
		checks: {claimed: {201, 1}, acted: {201, 1}, recording: {201, 1}, recorded: {201, 1}},
		keyed:  {claimed: {201, 1}, acted: {201, 1}, recording: {201, 1}, recorded: {201, 1}},
		held:   {claimed: {409, 0}, acted: {409, 1}, recording: {409, 1}, recorded: {201, 1}},
	} {
		next := startSite(t, "", mode, idemd, ledger)
		for step, want := range wants {
			key := mode + "-" + step
			actAndKill(t, startSite(t, step, mode, idemd, ledger), step, key)
			repeats.Go(func() { // it waits for the lease to end
				got := post(t.Context(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, next.url, key)
				want.check(t, step, key, got, ledger.entries(t, key))
			})
		}
	}
}

// actAndKill sends a request, and kills the process that serves it when that is at the step.
func actAndKill(t *testing.T, doomed *child, step, key string) {
	t.Helper()
	answered := make(chan answer, 1)
	go func() { answered <- post(t.Context(), &http.Client{Transport: &http.Transport{}}, doomed.url, key) }()
	doomed.expect(t, step)
	doomed.kill()
	if got := <-answered; got.err == nil {
		t.Errorf("%s: a killed process has answered %+v", key, got)
	}
}

// killedWant is what a repeat is answered, and how many effects there are then.
type killedWant struct{ status, effects int }

func (w killedWant) check(t *testing.T, step, key string, got answer, entries []string) {
	if got.status != w.status || len(entries) != w.effects {
		t.Errorf("%s: the repeat got %+v, and the ledger has %d entries; want %d and %d", key, got, len(entries), w.status, w.effects)
	}
	if got.status == 201 && (len(entries) == 0 || got.body != "receipt "+entries[len(entries)-1]) {
		t.Errorf("%s: the receipt is %q, the ledger has %q", key, got.body, entries)
	}
	if replayed := got.header.Get(idemhttp.HeaderReplayed) == "true"; replayed != (step == recorded) {
		t.Errorf("%s: replayed is %v", key, replayed)
	}
	if got.status == 409 && got.header.Get(idemhttp.HeaderRefused) != "KEY_UNRESOLVED" {
		t.Errorf("%s: refused with %s", key, got.header.Get(idemhttp.HeaderRefused))
	}
}

// A ledger is a file of effects: a line holds the key and the number of the attempt.
type ledger string

func (l ledger) add(key string, attempt int) error {
	f, err := os.OpenFile(string(l), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %d\n", key, attempt)
	return errors.Join(err, f.Close())
}

func (l ledger) find(key string) ([]string, error) {
	b, err := os.ReadFile(string(l))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		if attempt, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), key+" "); ok {
			found = append(found, attempt)
		}
	}
	return found, nil
}

func (l ledger) entries(t *testing.T, key string) []string {
	entries, err := l.find(key)
	if err != nil {
		t.Error(err)
	}
	return entries
}

// A child is a serving process.
type child struct {
	url   string
	lines chan string
	kill  func()
}

func startSite(t *testing.T, step, mode, idemd string, l ledger) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killVariable+"="+strings.Join([]string{step, mode, idemd, string(l)}, ","))
	cmd.Stderr = os.Stderr
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
	c := &child{lines: make(chan string, 100)}
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	c.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		for range c.lines { // it is all read before Wait closes the pipe
		}
		_ = cmd.Wait()
	})
	t.Cleanup(c.kill)
	c.url = c.expect(t, "http://")
	return c
}

// expect returns the next line, which has to begin like that.
func (c *child) expect(t *testing.T, prefix string) string {
	t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok || !strings.HasPrefix(line, prefix) {
			t.Fatalf("the process said %q, want %q", line, prefix)
		}
		return line
	case <-time.After(patience):
		t.Fatalf("the process has not said %q", prefix)
	}
	return ""
}

// beKilled is what a child does. It ends with its parent.
func beKilled(config string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	parts := strings.Split(config, ",")
	if err := serveKilled(parts[0], parts[1], parts[2], ledger(parts[3])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveKilled(step, mode, idemd string, l ledger) error {
	c, err := client.Dial(idemd)
	if err != nil {
		return err
	}
	at := func(here string) {
		if here == step {
			fmt.Println(step)
			select {}
		}
	}
	guard, err := idemhttp.NewGuard(steppedStore{c, at}, idemhttp.NoOwner())
	if err != nil {
		return err
	}
	pay := func(w http.ResponseWriter, r *http.Request) {
		attempt, err := charge(r, mode, l)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		at(acted)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "receipt ", attempt)
	}
	policy := idemhttp.Policy{Required: true, Lease: time.Second, Wait: patience, Hold: mode == held}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", guard.Handler(http.HandlerFunc(pay), policy))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + lis.Addr().String())
	return http.Serve(lis, mux)
}

// charge has the effect, and returns which attempt had it.
func charge(r *http.Request, mode string, l ledger) (attempt string, err error) {
	a, ok := client.AttemptFrom(r.Context())
	if !ok {
		return "", errors.New("not guarded")
	}
	// The ledger stands for a provider that refuses a second entry for one reference; what is
	// written here under the key itself is found by a.DownstreamKey at a real one.
	if mode == keyed || mode == checks && a.Unsettled {
		if found, err := l.find(a.Key.ID); err != nil || len(found) > 0 {
			return strings.Join(found, " "), err
		}
	}
	return fmt.Sprint(a.Number), l.add(a.Key.ID, a.Number)
}

// steppedStore stands still at the steps that are the store's.
type steppedStore struct {
	store.Store
	at func(step string)
}

func (s steppedStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := s.Store.Claim(ctx, req)
	s.at(claimed)
	return answer, err
}

func (s steppedStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	s.at(recording)
	answer, err := s.Store.Complete(ctx, req)
	s.at(recorded)
	return answer, err
}
