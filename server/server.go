package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// Config is what a [Server] is made of.
type Config struct {
	// Backend is the store. Required. The server does not close it: close it after
	// Shutdown has returned.
	Backend store.Backend
	// Metrics counts. Nil: in a registry of the server's own. Make it with [NewMetrics] to
	// hand it to the store as well, or to add collectors to its registry.
	Metrics *Metrics
	// Logger gets a line per refusal, per operator's action and, at debug, per call. Nil:
	// slog.Default().
	Logger *slog.Logger
	// Notice is what an operator should see to though the server serves; /healthz says it
	// until it is empty. Nil: there is never any.
	Notice func() string
	// AllowInsecure permits listeners that other machines can reach. See [CheckListenAddr].
	AllowInsecure bool
}

// Server serves one backend. Make it with [New], then call Serve once, and ServeAdmin if
// wanted, each in a goroutine of its own, and Shutdown. It cannot be used again.
type Server struct {
	config Config
	grpc   *grpc.Server
	admin  *http.Server
	waiter *store.Waiter
	top    store.Backend // what the services ask
	health *health
	calls  *calls

	draining   context.Context // ends when Shutdown begins
	startDrain context.CancelFunc
	serving    atomic.Bool
}

// New returns a server that does not listen yet. Shutdown must be called also if it never
// serves: it probes the store from now on.
func New(config Config) (*Server, error) {
	if config.Backend == nil {
		return nil, errors.New("server: Config.Backend is required")
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Metrics == nil {
		metrics, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			return nil, err
		}
		config.Metrics = metrics
	}
	s := &Server{config: config, health: newHealth(config.Backend, config.Notice)}
	s.draining, s.startDrain = context.WithCancel(context.Background())
	s.admin = newAdminHTTP(s.health, config.Metrics.registry)
	s.calls = &calls{logger: config.Logger, metrics: config.Metrics, draining: s.draining.Done()}
	s.grpc = grpc.NewServer(slices.Concat(limits(), s.calls.options(), []grpc.ServerOption{grpc.InTapHandle(received)})...)
	s.stack()
	s.register()
	return s, nil
}

// stack puts the parts of the server over the backend.
func (s *Server) stack() {
	metrics := s.config.Metrics
	inner := &asking{Backend: s.config.Backend, metrics: metrics}
	s.waiter = store.NewWaiter(inner, store.WaiterOptions{})
	waiting := s.waiter.Waiting
	metrics.waiting.Store(&waiting)
	s.top = &counted{Backend: inner, keys: s.waiter, metrics: metrics}
}

func (s *Server) keyService() *keyService {
	return newKeyService(s.top, s.calls)
}

func (s *Server) register() {
	s.grpc.RegisterService(s.calls.reading(pb.IdempotencyService_ServiceDesc), s.keyService())
	s.grpc.RegisterService(s.calls.reading(pb.AdminService_ServiceDesc), &adminService{backend: s.top, metrics: s.config.Metrics})
	healthpb.RegisterHealthServer(s.grpc, s.health)
}

// Serve answers gRPC calls until Shutdown, and then returns nil. It closes the listener.
// A listener that other machines can reach is refused with [ErrInsecureAddress] unless
// the configuration allows it. Server reflection, which lets grpcurl be used without the
// .proto files, is served only on listeners that other machines cannot reach.
func (s *Server) Serve(lis net.Listener) error {
	if err := checkListener(lis, s.config.AllowInsecure); err != nil {
		return errors.Join(err, lis.Close())
	}
	if !s.serving.CompareAndSwap(false, true) {
		return errors.Join(errors.New("server: Serve was called before"), lis.Close())
	}
	if isLocal(lis) {
		reflection.Register(s.grpc)
	}
	err := s.grpc.Serve(newDoor(lis, maxConnections, s.config.Logger, s.config.Metrics))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// ServeAdmin serves /metrics and /healthz until Shutdown, and then returns nil. It closes
// the listener, and refuses the same ones as Serve.
func (s *Server) ServeAdmin(lis net.Listener) error {
	if err := checkListener(lis, s.config.AllowInsecure); err != nil {
		return errors.Join(err, lis.Close())
	}
	err := s.admin.Serve(newDoor(lis, maxAdminConnections, s.config.Logger, s.config.Metrics))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown ends the server in this order: health says NOT_SERVING; waiting claims are
// answered at once, with in progress; streams of health and reflection end; new calls are
// refused and running ones finish; the admin listener closes. If ctx ends before, the
// running calls are cut off and Shutdown still waits for their handlers, so that nobody uses
// the backend when it returns; the error says so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.health.drain()
	s.waiter.Close()
	s.startDrain()
	err := s.drain(ctx)
	s.health.close()
	return errors.Join(err, s.admin.Close())
}

// drain lets the running calls finish, until ctx ends.
func (s *Server) drain(ctx context.Context) error {
	drained := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(drained)
	}()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	}
	s.grpc.Stop()
	<-drained
	return fmt.Errorf("running calls were cut off: %w", ctx.Err())
}
