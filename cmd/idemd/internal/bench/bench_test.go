package bench

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/protobuf/proto"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// TestBareMessagesHaveTheSizeOfRealOnes keeps the comparison fair.
func TestBareMessagesHaveTheSizeOfRealOnes(t *testing.T) {
	const outcomeBytes = 300
	connection, err := dial(startMemory(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.close()
	w := newWorker(idemdv1.NewIdempotencyServiceClient(connection.conns[0]), &Options{Namespace: "default", OutcomeBytes: outcomeBytes})
	bare := newBare(outcomeBytes)
	ctx := t.Context()

	granted, err := w.client.Claim(ctx, w.claim(w.nextID()))
	if err != nil {
		t.Fatal(err)
	}
	sameSize(t, "granted", bare.granted, granted)
	done, err := w.client.Complete(ctx, &idemdv1.CompleteRequest{
		Key: w.key(w.lastID()), AttemptId: attempt(w.lastID(), 'h'), Fence: granted.GetGranted().GetFence(), Outcome: w.outcome,
	})
	if err != nil {
		t.Fatal(err)
	}
	sameSize(t, "complete", bare.done, done)
	completed, err := w.client.Claim(ctx, w.claim(w.lastID()))
	if err != nil {
		t.Fatal(err)
	}
	sameSize(t, "completed", bare.completed, completed)
}

// sameSize allows for numbers that take a few bytes more or less.
func sameSize(t *testing.T, name string, bare, real proto.Message) {
	t.Helper()
	if b, r := proto.Size(bare), proto.Size(real); b < r-12 || b > r+12 {
		t.Errorf("%s: the bare message has %d bytes, a real one %d\n%v\n%v", name, b, r, bare, real)
	}
}

// startMemory serves a store in memory and returns its address.
func startMemory(t *testing.T) string {
	t.Helper()
	s, err := server.New(server.Config{
		Backend: storetest.NewMemory(store.SystemClock{}),
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// TestGuardedCallsAreCompletedAtIdemd keeps a guard that does nothing from looking fast.
func TestGuardedCallsAreCompletedAtIdemd(t *testing.T) {
	options := &Options{Namespace: "default", OutcomeBytes: 300}
	idemd, err := dial(startMemory(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer idemd.close()
	server, err := startGuarded(options, idemd)
	if err != nil {
		t.Fatal(err)
	}
	defer server.stop()
	connection, err := dial(server.addr, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.close()
	w := newWorker(idemdv1.NewIdempotencyServiceClient(connection.conns[0]), options)
	ctx := t.Context()

	if err := callGuarded(ctx, w); err != nil {
		t.Fatal(err)
	}
	key := w.key(w.lastID())
	key.Scope = guardedMethod
	resp, err := idemdv1.NewIdempotencyServiceClient(idemd).Lookup(ctx, &idemdv1.LookupRequest{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetState() != idemdv1.State_STATE_COMPLETED {
		t.Errorf("the key is %v", resp)
	}
	if err := w.askGuarded(ctx, w.lastID(), true); err != nil {
		t.Errorf("a repeat: %v", err)
	}
	if err := w.askGuarded(ctx, w.lastID(), false); err == nil {
		t.Error("a repeat was taken for a call that acted")
	}
}

func TestQuantiles(t *testing.T) {
	if got := median([]float64{5, 1, 3}); got != 3 {
		t.Errorf("median of 5, 1, 3: %v", got)
	}
	sorted := make([]int, 100)
	for i := range sorted {
		sorted[i] = i
	}
	for q, want := range map[float64]int{0: 0, 0.5: 50, 0.99: 99, 1: 99} {
		if got := quantile(sorted, q); got != want {
			t.Errorf("quantile %v of 0 to 99: %d, want %d", q, got, want)
		}
	}
	if got := quantile([]int(nil), 0.5); got != 0 {
		t.Errorf("quantile of nothing: %d", got)
	}
}
