package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
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
	// Identity gives TLS, says who callers are and what they may do; the server has its files
	// read again. Nil: plain text, and everything is allowed.
	Identity *identity.Authority
	// Backup makes backups for operators. Nil: they are refused.
	Backup BackupFunc
	// Notice is what an operator should see to though the server serves; /healthz says it
	// until it is empty. Nil: there is never any.
	Notice func() string
	// NoticeForAll is the same without the names of namespaces, for whoever is not an operator of all of them where
	// callers are told apart. Nil: Notice names none.
	NoticeForAll func() string
	// Regions are those that the server serves one of. Nil: there are none.
	Regions Regions
	// Mover carries out MoveNamespace. Nil: there are no regions.
	Mover Mover
	// AllowInsecure permits listeners that other machines can reach also without TLS and a
	// policy. See [CheckListenAddr].
	AllowInsecure bool
}

// Server serves one backend. Make it with [New], then call Serve once, and ServeAdmin if
// wanted, each in a goroutine of its own, and Shutdown. It cannot be used again.
type Server struct {
	config Config
	grpc   *grpc.Server
	admin  *http.Server
	waiter *store.Waiter
	local  store.Backend // what answers for this server's own region
	top    store.Backend // what the services ask: the same, or that over all regions
	health *health
	calls  *calls
	places int // for connections

	entrances sync.Mutex
	doors     []*door

	draining   context.Context // ends when Shutdown begins
	startDrain context.CancelFunc
	serving    atomic.Bool
	watching   sync.WaitGroup // the files of Identity
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
	if err := config.Metrics.watch(config.Identity); err != nil {
		return nil, err
	}
	places, err := places(openFiles(), config.Logger)
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, places: places}
	s.health = newHealth(&floors{store: config.Backend, gauge: config.Metrics.recoveryFloor}, s.notice)
	s.draining, s.startDrain = context.WithCancel(context.Background())
	s.calls = &calls{logger: config.Logger, metrics: config.Metrics, identity: config.Identity, draining: s.draining.Done()}
	s.admin = newAdminHTTP(s.health, config.Metrics.registry, s.calls)
	s.grpc = grpc.NewServer(slices.Concat(limits(config.Regions != nil), s.calls.options(), s.security(), []grpc.ServerOption{grpc.InTapHandle(received)})...)
	if config.Identity != nil {
		s.watching.Go(func() { config.Identity.Run(s.draining) })
		s.watching.Go(s.lookAgain)
	}
	s.stack()
	s.register()
	return s, nil
}

// security is the TLS of gRPC, if there is any.
func (s *Server) security() []grpc.ServerOption {
	if !s.config.Identity.Encrypts() {
		return nil
	}
	return []grpc.ServerOption{grpc.Creds(greeting{s.config.Identity.TransportCredentials(), s.config.Identity})}
}

// mayServeAfar reports whether listeners that other machines can reach are permitted.
func (s *Server) mayServeAfar() bool {
	return s.config.AllowInsecure || s.config.Identity.Encrypts() && s.config.Identity.Identifies()
}

// notice is what an operator should see to, beside recovery floors. Namespaces are named only if they may be.
func (s *Server) notice(named bool) string {
	own := s.config.Notice
	if !named && s.config.NoticeForAll != nil {
		own = s.config.NoticeForAll
	}
	files := func() string { return "" }
	if s.config.Identity != nil {
		files = s.config.Identity.Notice
	}
	return JoinNotices(own, files, s.crowded)()
}

// JoinNotices joins what an operator should see to; nil functions have nothing to say.
func JoinNotices(of ...func() string) func() string {
	return func() string {
		var notices []string
		for _, notice := range of {
			if notice == nil {
				continue
			}
			if text := notice(); text != "" {
				notices = append(notices, text)
			}
		}
		return strings.Join(notices, "; ")
	}
}

// stack puts the parts of the server over the backend.
func (s *Server) stack() {
	metrics := s.config.Metrics
	inner := &asking{Backend: s.config.Backend, metrics: metrics}
	s.waiter = store.NewWaiter(inner, store.WaiterOptions{})
	waiting := s.waiter.Waiting
	metrics.waiting.Store(&waiting)
	s.local = &counted{Backend: inner, keys: s.waiter, metrics: metrics}
	s.top = s.local
	if s.config.Regions != nil {
		s.top = &unreached{Backend: s.config.Regions.Over(s.local), metrics: metrics}
	}
}

func (s *Server) keyService() *keyService {
	service := newKeyService(s.top, s.calls)
	service.regions = s.config.Regions
	return service
}

// registrar registers services with their requests read as calls reads them. There is no other
// way for a service onto the listener.
type registrar struct{ server *Server }

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	r.server.grpc.RegisterService(r.server.calls.reading(*desc), impl)
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (r registrar) GetServiceInfo() map[string]grpc.ServiceInfo {
	return r.server.grpc.GetServiceInfo()
}

func (s *Server) register() {
	pb.RegisterIdempotencyServiceServer(registrar{s}, s.keyService())
	pb.RegisterAdminServiceServer(registrar{s}, &adminService{backend: s.top, metrics: s.config.Metrics, authorizer: s.config.Identity.Authorizer(), calls: s.calls, mover: s.config.Mover, regions: s.config.Regions, backup: s.config.Backup})
	healthpb.RegisterHealthServer(registrar{s}, s.health)
	if s.config.Regions != nil {
		s.config.Regions.Register(registrar{s}, s.local)
	}
}

// Serve answers gRPC calls until Shutdown, and then returns nil. It closes the listener.
// A listener that other machines can reach is refused with [ErrInsecureAddress] unless
// there is TLS and a policy, or the configuration allows it. Server reflection, which lets grpcurl be used without the
// .proto files, is served only on listeners that other machines cannot reach.
func (s *Server) Serve(lis net.Listener) error {
	if err := checkListener(lis, s.mayServeAfar()); err != nil {
		return errors.Join(err, lis.Close())
	}
	if !s.serving.CompareAndSwap(false, true) {
		return errors.Join(errors.New("server: Serve was called before"), lis.Close())
	}
	if isLocal(lis) {
		reflection.Register(registrar{s})
	}
	err := s.grpc.Serve(s.door(lis, s.places, s.config.Identity.Encrypts()))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// ServeAdmin serves /metrics and /healthz until Shutdown, and then returns nil. It closes
// the listener, and refuses the same ones as Serve. With TLS, if there is any, it speaks only
// where other machines can connect.
func (s *Server) ServeAdmin(lis net.Listener) error {
	if err := checkListener(lis, s.mayServeAfar()); err != nil {
		return errors.Join(err, lis.Close())
	}
	encrypts := s.config.Identity.Encrypts() && !isLocal(lis)
	entered := net.Listener(s.door(lis, maxAdminConnections, encrypts))
	if encrypts {
		entered = tls.NewListener(entered, s.config.Identity.TLSConfig("http/1.1"))
	}
	err := s.admin.Serve(entered)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// door is a door before a listener. Nobody is a stranger where nobody is told apart, and who is on
// this machine, in plain text, is not either.
func (s *Server) door(lis net.Listener, most int, encrypts bool) *door {
	strangers := 0
	if s.config.Identity.Identifies() && (encrypts || !isLocal(lis)) {
		strangers = most / strangersShare
	}
	d := newDoor(lis, most, strangers, s.config.Logger, s.config.Metrics)
	s.entrances.Lock()
	defer s.entrances.Unlock()
	s.doors = append(s.doors, d)
	return d
}

// allDoors are those that there are now.
func (s *Server) allDoors() []*door {
	s.entrances.Lock()
	defer s.entrances.Unlock()
	return slices.Clone(s.doors)
}

// lookAgain has those who are not known any more make room, until the drain begins.
func (s *Server) lookAgain() {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.draining.Done():
			return
		case <-ticker.C:
		}
		for _, d := range s.allDoors() {
			d.lookAgain(s.config.Identity.Knows)
		}
	}
}

// crowded is the notice of listeners that are full.
func (s *Server) crowded() string {
	for _, d := range s.allDoors() {
		if d.isFull() {
			return fmt.Sprintf("all connections that callers may have on %s are open: the log says who has most", d.Addr())
		}
	}
	return ""
}

// Shutdown ends the server in this order: health says NOT_SERVING; waiting claims are
// answered at once, with in progress; streams of health and reflection end; new calls are
// refused and running ones finish; the admin listener closes. If ctx ends before, the
// running calls are cut off and Shutdown still waits for their handlers, so that nobody uses
// the backend when it returns; the error says so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.health.drain()
	s.waiter.Close()
	if s.config.Regions != nil {
		s.config.Regions.Drain()
	}
	s.startDrain()
	err := s.drain(ctx)
	s.watching.Wait()
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
