package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// failing is a store that fails when it is told to.
func failing() (*hooked, *atomic.Bool) {
	var broken atomic.Bool
	return &hooked{newMemory(), func(context.Context, operation) error {
		if broken.Load() {
			return store.Refuse(store.ErrUnavailable, "")
		}
		return nil
	}}, &broken
}

func TestHealthPerService(t *testing.T) {
	backend, broken := failing()
	r := newRig(t, backend)
	health, ctx := healthpb.NewHealthClient(r.connect()), t.Context()
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		list, err := health.List(ctx, &healthpb.HealthListRequest{})
		if err != nil || len(list.GetStatuses()) != 3 {
			t.Fatalf("List: %v, %v", list, err)
		}
		for _, service := range []string{"", "idemd.v1.IdempotencyService", "idemd.v1.AdminService"} {
			m, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
			if err != nil || m.GetStatus() != want || list.GetStatuses()[service].GetStatus() != want {
				t.Errorf("health of %q: %v, %v; listed as %v; want %v", service, m, err, list.GetStatuses()[service], want)
			}
		}
	}
	check(healthpb.HealthCheckResponse_SERVING)
	if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of an unknown service: %v", err)
	}
	watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("watch of an unknown service: %v, %v", m, err)
	}

	broken.Store(true)
	if code, body := r.healthz(); code != http.StatusServiceUnavailable || body != (healthBody{Status: "not serving", Problem: "the store does not answer"}) {
		t.Errorf("/healthz of a broken store: %d %+v", code, body)
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	broken.Store(false)
	if code, body := r.healthz(); code != http.StatusOK || body != (healthBody{Status: "serving"}) {
		t.Errorf("/healthz of a whole store: %d %+v", code, body)
	}
	check(healthpb.HealthCheckResponse_SERVING)
}

// TestHealthNotice checks that what an operator should see to is said, and takes no server
// out of rotation.
func TestHealthNotice(t *testing.T) {
	notice := "look at this"
	s, err := New(Config{Backend: newMemory(), Notice: func() string { return notice }})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, Server: s}
	t.Cleanup(r.close)
	if code, body := r.healthz(); code != http.StatusOK || body != (healthBody{Status: "serving", Notice: notice}) {
		t.Errorf("/healthz with a notice: %d %+v", code, body)
	}
	notice = ""
	if code, body := r.healthz(); code != http.StatusOK || body != (healthBody{Status: "serving"}) {
		t.Errorf("/healthz without one: %d %+v", code, body)
	}
}

// Only a store that does not answer takes the server out of rotation: not one that refuses,
// which a greedy tenant can bring about, nor one who asks for /healthz and hangs up.
func TestARefusalIsAnAnswer(t *testing.T) {
	for _, refusal := range []error{store.ErrOverloaded, store.ErrQuota, store.ErrRecordCorrupt, store.ErrNamespaceUnknown, store.ErrInternal} {
		r := newRig(t, &hooked{newMemory(), func(context.Context, operation) error { return store.Refuse(refusal, "") }})
		if code, body := r.healthz(); code != http.StatusOK {
			t.Errorf("/healthz of a store that refuses with %v: %d %+v", refusal, code, body)
		}
		m, err := healthpb.NewHealthClient(r.connect()).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || m.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of a store that refuses with %v: %v, %v", refusal, m, err)
		}
	}
}

func TestHealthIsNotThatOfWhoeverAsks(t *testing.T) {
	r := newRig(t, &hooked{newMemory(), func(ctx context.Context, _ operation) error { return ctx.Err() }})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.admin.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/healthz", nil))
	if problem, _, _ := r.health.now(); problem != "" {
		t.Errorf("somebody hung up, and health says %q", problem)
	}
}

// Nobody has to ask: the server notices by itself that its store fails, and that it is
// back.
func TestHealthFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend, broken := failing()
		r := newRig(t, backend)
		defer r.close()
		watch, err := healthpb.NewHealthClient(r.connect()).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
			healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING,
		} {
			start := time.Now()
			if m, err := watch.Recv(); err != nil || m.GetStatus() != want {
				t.Fatalf("got %v, %v, want %v", m, err, want)
			}
			if took := time.Since(start); took > probeInterval {
				t.Errorf("noticed after %v", took)
			}
			broken.Store(!broken.Load())
		}
	})
}

// A store that hangs fails the probe in time, and does not keep the server from ending.
func TestHealthOfAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &hooked{newMemory(), func(ctx context.Context, _ operation) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		defer r.close()
		start := time.Now()
		if code, _ := r.healthz(); code != http.StatusServiceUnavailable {
			t.Errorf("/healthz says %d", code)
		}
		if took := time.Since(start); took != probeTimeout {
			t.Errorf("/healthz took %v", took)
		}
		time.Sleep(probeInterval) // into the middle of the next probe
		if err := r.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

func TestAdminListenerHasTwoPages(t *testing.T) {
	r := newRig(t, newMemory())
	grant(t, r.client(), testKey, "a")
	get := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		r.admin.Handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w.Code, w.Body.String()
	}
	want := `idemd_answers_total{answer="granted_new",namespace="default",operation="claim"} 1`
	if code, body := get(http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(body, want) {
		t.Errorf("/metrics: %d, without %s:\n%s", code, want, body)
	}
	for _, path := range []string{"/", "/debug/pprof/", "/debug/pprof/heap", "/debug/vars", "/metrics/x"} {
		if code, _ := get(http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := get(http.MethodPost, "/healthz"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /healthz: %d", code)
	}
	for name, timeout := range map[string]time.Duration{
		"ReadHeaderTimeout": r.admin.ReadHeaderTimeout, "ReadTimeout": r.admin.ReadTimeout,
		"WriteTimeout": r.admin.WriteTimeout, "IdleTimeout": r.admin.IdleTimeout,
	} {
		if timeout <= 0 || timeout > time.Minute {
			t.Errorf("%s is %v: a slow peer could stay", name, timeout)
		}
	}
}

func TestServeAdmin(t *testing.T) {
	r := newRig(t, newMemory())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.ServeAdmin(lis) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+lis.Addr().String()+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // read to its end
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"serving"`)) {
		t.Errorf("/healthz: %d %s, %v", resp.StatusCode, body, err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("ServeAdmin returned %v", err)
	}
}

func TestListenAddresses(t *testing.T) {
	for addr, local := range map[string]bool{
		"127.0.0.1:7600": true, "127.9.9.9:0": true, "[::1]:7600": true, "localhost:7600": true,
		":7600": false, "0.0.0.0:7600": false, "[::]:7600": false, "192.0.2.1:7600": false, "example.com:7600": false,
	} {
		err := CheckListenAddr(addr, false)
		if local != (err == nil) || !local && !errors.Is(err, ErrInsecureAddress) {
			t.Errorf("%s: %v", addr, err)
		}
		if !local && !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: the error does not name it: %v", addr, err)
		}
		if err := CheckListenAddr(addr, true); err != nil {
			t.Errorf("%s, allowed: %v", addr, err)
		}
	}
	for _, addr := range []string{"", "7600", "127.0.0.1", "::1:7600"} {
		if err := CheckListenAddr(addr, true); err == nil || errors.Is(err, ErrInsecureAddress) {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

// publicListener says that it listens where other machines can reach it.
type publicListener struct {
	net.Listener
	closed bool
}

func (l *publicListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7600}
}

func (l *publicListener) Close() error {
	l.closed = true
	return nil
}

func TestPublicListenersAreRefused(t *testing.T) {
	r := newRig(t, newMemory())
	for name, serve := range map[string]func(net.Listener) error{"Serve": r.Serve, "ServeAdmin": r.ServeAdmin} {
		lis := &publicListener{}
		if err := serve(lis); !errors.Is(err, ErrInsecureAddress) || !lis.closed {
			t.Errorf("%s: %v, closed %t", name, err, lis.closed)
		}
	}
}

func TestServeOnce(t *testing.T) {
	r := newRig(t, newMemory())
	grant(t, r.client(), testKey, "a") // it serves
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Serve(lis); err == nil {
		t.Error("served twice")
	}
}

// abroad is a pipe that says that other machines can reach it.
type abroad struct{ *bufconn.Listener }

func (abroad) Addr() net.Addr { return (*publicListener)(nil).Addr() }

func TestNoReflectionForOtherMachines(t *testing.T) {
	s, err := New(Config{Backend: newMemory(), AllowInsecure: true})
	if err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- s.Serve(abroad{lis}) }()
	conn := dialPipe(t, lis)
	grant(t, client.New(conn), testKey, "a")
	for service := range s.grpc.GetServiceInfo() {
		if strings.Contains(service, "reflection") {
			t.Errorf("%s is served", service)
		}
	}
	if err := errors.Join(conn.Close(), s.Shutdown(t.Context()), <-served); err != nil {
		t.Error(err)
	}
}

// Reflection is for people on this machine.
func TestReflection(t *testing.T) {
	r := newRig(t, newMemory())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(r.connect()).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || !strings.Contains(m.String(), "idemd.v1.IdempotencyService") {
		t.Errorf("services: %v, %v", m, err)
	}
}
