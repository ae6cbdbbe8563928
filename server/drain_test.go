package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/store"
)

// journal is what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) order() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// gate lets a test hold operations of a kind inside the store.
type gate struct {
	op      operation
	entered chan struct{}
	opened  chan struct{}
	left    func()
}

func newGate(op operation, left func()) *gate {
	return &gate{op: op, entered: make(chan struct{}, 1), opened: make(chan struct{}), left: left}
}

func (g *gate) before(_ context.Context, op operation) error {
	if op == g.op {
		g.entered <- struct{}{}
		<-g.opened
		g.left()
	}
	return nil
}

// Case 44: drain while calls are in flight.
func TestDrainInOrder(t *testing.T) {
	var j journal
	g := newGate(opComplete, func() { j.note("handler finishes") })
	r := newRig(t, &hooked{newMemory(), g.before})
	c, ctx := r.client(), t.Context()
	watch, err := healthpb.NewHealthClient(r.connect()).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health before: %v, %v", m, err)
	}

	fence := grant(t, c, testKey, "holder")
	completed := make(chan error, 1)
	go func() {
		_, err := c.Complete(ctx, store.CompleteRequest{Key: testKey, AttemptID: "holder", Fence: fence, Outcome: &store.Outcome{}})
		completed <- err
	}()
	<-g.entered // the handler is inside the store

	shut := make(chan error, 1)
	go func() {
		err := r.Shutdown(ctx)
		j.note("shut down")
		shut <- err
	}()
	if m, err := watch.Recv(); err != nil || m.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while draining: %v, %v", m, err)
	}
	j.note("not serving")
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch goes on: %v", err)
	}
	if code, body := r.healthz(); code != http.StatusServiceUnavailable || body.Problem != "draining" {
		t.Errorf("/healthz while draining: %d %+v", code, body)
	}
	close(g.opened)
	if err := <-completed; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-shut; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	j.note("store closed") // by its owner, who waited for Shutdown
	if want := []string{"not serving", "handler finishes", "shut down", "store closed"}; !slices.Equal(j.order(), want) {
		t.Errorf("order is %q, want %q", j.order(), want)
	}
	if _, err := c.Lookup(ctx, store.LookupRequest{Key: testKey}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a call after the end: %v", err)
	}
}

// Waiting claims do not delay a drain: they are answered at once.
func TestDrainEndsWaits(t *testing.T) {
	claims := make(chan struct{}, 3)
	r := newRig(t, &hooked{newMemory(), func(_ context.Context, op operation) error {
		if op == opClaim {
			claims <- struct{}{}
		}
		return nil
	}})
	c, ctx := r.client(), t.Context()
	grant(t, c, testKey, "holder")
	<-claims
	type result struct {
		answer store.ClaimAnswer
		err    error
	}
	waited := make(chan result, 1)
	go func() {
		answer, err := c.Claim(ctx, store.ClaimRequest{Key: testKey, AttemptID: "waiting", Wait: store.MaxWait})
		waited <- result{answer, err}
	}()
	<-claims // it is waiting, or about to
	if got := r.value("idemd_waiting_claims"); got != 1 {
		t.Errorf("%v claims wait, want 1", got)
	}
	if err := r.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if got := <-waited; got.err != nil || got.answer.InProgress == nil {
		t.Errorf("the waiting claim got %+v, %v", got.answer, got.err)
	}
}

// Open streams do not delay a drain either.
func TestDrainEndsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemory())
		defer r.close()
		ctx := t.Context()
		watch, err := healthpb.NewHealthClient(r.connect()).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		reflected, err := reflectionpb.NewServerReflectionClient(r.connect()).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the server's sides are there

		within, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		start := time.Now()
		if err := r.Shutdown(within); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("open streams held the drain for %v", took)
		}
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
			healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
		} {
			if m, err := watch.Recv(); err != nil || m.GetStatus() != want {
				t.Errorf("the watch got %v, %v, want %v", m, err, want)
			}
		}
		if m, err := reflected.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream of reflection goes on: %v, %v", m, err)
		}
	})
}

// A drain ends when its context does, and even then not before the handlers have.
func TestDrainIsBounded(t *testing.T) {
	var j journal
	entered := make(chan struct{})
	r := newRig(t, &hooked{newMemory(), func(ctx context.Context, op operation) error {
		if op == opGetNamespace { // health
			return nil
		}
		close(entered)
		<-ctx.Done()
		j.note("handler cut off")
		return ctx.Err()
	}})
	c := r.client()
	failed := make(chan error, 1)
	go func() {
		_, err := c.Lookup(context.Background(), store.LookupRequest{Key: testKey})
		failed <- err
	}()
	<-entered
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := r.Shutdown(ended)
	j.note("shut down")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if want := []string{"handler cut off", "shut down"}; !slices.Equal(j.order(), want) {
		t.Errorf("order is %q, want %q", j.order(), want)
	}
	if err := <-failed; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the call that was cut off: %v", err)
	}
}

// A probe that was under way when the drain began does not say that all is well again.
func TestDrainIsForGood(t *testing.T) {
	g := newGate(opGetNamespace, func() {})
	r := newRig(t, &hooked{newMemory(), g.before})
	probed := make(chan int, 1)
	go func() {
		code, _ := r.healthz()
		probed <- code
	}()
	<-g.entered
	r.health.drain()
	close(g.opened)
	if code := <-probed; code != http.StatusServiceUnavailable {
		t.Errorf("the probe under way says %d", code)
	}
	if code, body := r.healthz(); code != http.StatusServiceUnavailable || body.Problem != "draining" {
		t.Errorf("/healthz says %d %+v", code, body)
	}
}

func TestShutdownWithoutServing(t *testing.T) {
	s, err := New(Config{Backend: newMemory()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
}

type healthBody struct{ Status, Problem, Notice string }

// healthz asks /healthz.
func (r *rig) healthz() (int, healthBody) {
	r.Helper()
	w := httptest.NewRecorder()
	r.admin.Handler.ServeHTTP(w, httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/healthz", nil))
	var body healthBody
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		r.Errorf("/healthz is not JSON: %v: %s", err, w.Body)
	}
	return w.Code, body
}
