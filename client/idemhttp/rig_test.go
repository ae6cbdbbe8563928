package idemhttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// bubbleClock is the time of a synctest bubble.
type bubbleClock struct{ start time.Time }

func (c bubbleClock) Wall() time.Time          { return time.Now() }
func (c bubbleClock) Monotonic() time.Duration { return time.Since(c.start) }

// troubledStore is a store in memory of which operations can be made to fail.
type troubledStore struct {
	store.Store
	memory *storetest.Memory

	mu    sync.Mutex
	fails map[string]error
}

func (s *troubledStore) fail(operation string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[operation] = err
}

func (s *troubledStore) failing(operation string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fails[operation]
}

func (s *troubledStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	if err := s.failing("claim"); err != nil {
		return store.ClaimAnswer{}, err
	}
	return s.Store.Claim(ctx, req)
}

func (s *troubledStore) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	if err := s.failing("renew"); err != nil {
		return store.RenewAnswer{}, err
	}
	return s.Store.Renew(ctx, req)
}

func (s *troubledStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if err := s.failing("complete"); err != nil {
		return store.CompleteAnswer{}, err
	}
	return s.Store.Complete(ctx, req)
}

// A rig is a guarded route, POST /orders/{id}/pay, and an equal one, POST /refunds.
type rig struct {
	t     *testing.T
	store *troubledStore
	mux   *http.ServeMux

	mu     sync.Mutex
	do     http.HandlerFunc
	runs   int
	events []client.Event
}

// guarded runs a test in a bubble with a guard of options and no owner.
func guarded(t *testing.T, policy idemhttp.Policy, test func(*rig), opts ...idemhttp.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newRig(t, policy, append(opts, idemhttp.NoOwner())...)) })
}

func newRig(t *testing.T, policy idemhttp.Policy, opts ...idemhttp.Option) *rig {
	t.Helper()
	memory := storetest.NewMemory(bubbleClock{time.Now()})
	waiter := store.NewWaiter(memory, store.WaiterOptions{})
	r := &rig{t: t, store: &troubledStore{Store: waiter, memory: memory, fails: map[string]error{}}, mux: http.NewServeMux()}
	guard, err := idemhttp.NewGuard(r.store, append(opts, idemhttp.OnEvent(r.told))...)
	if err != nil {
		t.Fatal(err)
	}
	r.answers(http.StatusCreated, "receipt-1")
	r.mux.Handle("POST /orders/{id}/pay", guard.Handler(http.HandlerFunc(r.serve), policy))
	r.mux.Handle("/refunds", guard.Handler(http.HandlerFunc(r.serve), policy))
	t.Cleanup(func() {
		if err := client.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		waiter.Close()
	})
	return r
}

func (r *rig) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.runs++
	do := r.do
	r.mu.Unlock()
	do(w, req)
}

// does sets what the handler does.
func (r *rig) does(do http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.do = do
}

func (r *rig) answers(status int, body string) {
	r.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

func (r *rig) told(e client.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// kinds checks which events there were since the last time.
func (r *rig) kinds(want ...client.EventKind) []client.Event {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	var got []client.EventKind
	for _, e := range events {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("events %v, want %v", got, want)
	}
	return events
}

func (r *rig) ran(want int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs != want {
		r.t.Errorf("the handler ran %d times, want %d", r.runs, want)
	}
}

// request makes a request of path with fields of its header, as names and values.
func request(method, path, body string, fields ...string) *http.Request {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	return req
}

func (r *rig) send(req *http.Request) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	r.mux.ServeHTTP(recorder, req)
	return recorder
}

// post sends the request of all tests under a key.
func (r *rig) post(key string, fields ...string) *httptest.ResponseRecorder {
	return r.send(request(http.MethodPost, "/orders/7/pay", "42 EUR", append([]string{idemhttp.HeaderKey, key}, fields...)...))
}

const key1 = `"8e03978e-40d5-43e8-bc93-6894a57f9324"`

func (r *rig) once() *httptest.ResponseRecorder { return r.post(key1) }

func (r *rig) record() *store.Record {
	r.t.Helper()
	got, err := r.store.memory.InspectRecord(r.t.Context(), keyOf(key1))
	if err != nil && !errors.Is(err, store.ErrKeyNotFound) {
		r.t.Fatal(err)
	}
	return got.Record
}

func keyOf(key string) store.Key {
	return store.Key{Namespace: "default", Scope: "POST /orders/{id}/pay", ID: strings.Trim(key, `"`)}
}

// ok checks an answer of the handler's, or a replay.
func (r *rig) ok(got *httptest.ResponseRecorder, status int, body string, replayed bool) {
	r.t.Helper()
	if got.Code != status || got.Body.String() != body {
		r.t.Errorf("got %d %q, want %d %q", got.Code, got.Body, status, body)
	}
	if mark := got.Header().Get(idemhttp.HeaderReplayed); (mark == "true") != replayed || !replayed && mark != "" {
		r.t.Errorf("%s is %q, replayed is %v", idemhttp.HeaderReplayed, mark, replayed)
	}
}

// problem is a body of RFC 9457.
type problem struct{ Type, Title, Detail, Reason string }

// refused checks a refusal, and returns its problem.
func refused(t *testing.T, got *httptest.ResponseRecorder, status int, reason string) problem {
	t.Helper()
	header := got.Header()
	var p struct {
		problem
		Status int
	}
	if err := json.Unmarshal(got.Body.Bytes(), &p); err != nil {
		t.Fatalf("status %d: %q is no problem: %v", got.Code, got.Body, err)
	}
	if got.Code != status || p.Status != status || p.Reason != reason || header.Get(idemhttp.HeaderRefused) != reason {
		t.Errorf("got %d %q with field %q, want %d %s: %+v", got.Code, p.Reason, header.Get(idemhttp.HeaderRefused), status, reason, p)
	}
	if header.Get("Content-Type") != "application/problem+json" || header.Get("Content-Language") != "en" || p.Title == "" || p.Detail == "" {
		t.Errorf("header %v of problem %+v", header, p)
	}
	if want := "<" + p.Type + `>; rel="describedby"; type="text/html"`; header.Get("Link") != want {
		t.Errorf("Link is %q, want %q", header.Get("Link"), want)
	}
	again := slices.Contains([]string{"KEY_IN_PROGRESS", "STALE_FENCE", "STORE_UNAVAILABLE", "HOME_UNREACHABLE", "NAMESPACE_MOVING", "OVERLOADED", "QUOTA", "INTERNAL"}, reason)
	if (header.Get("Retry-After") != "") != again {
		t.Errorf("Retry-After is %q of %s", header.Get("Retry-After"), reason)
	}
	return p.problem
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is %#v, want %#v", what, got, want)
	}
}
