package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

const (
	// probeInterval is how often the store is asked whether it answers.
	probeInterval = 5 * time.Second
	// probeTimeout is how long it has for that.
	probeTimeout = 2 * time.Second
	// maxWatches is how many watches one connection may have, one for each service and one more;
	// all together may have one each.
	maxWatches    = 4
	maxAllWatches = maxConnections
)

// healthServices are those whose health is told; "" is the server as a whole. They stand
// and fall together, with the store.
var healthServices = []string{
	"", pb.IdempotencyService_ServiceDesc.ServiceName, pb.AdminService_ServiceDesc.ServiceName,
}

// health is the grpc.health.v1 service and what /healthz says. It is not the one of gRPC:
// that one's watches never end, so a drain would wait for the watchers to leave.
type health struct {
	healthpb.UnimplementedHealthServer
	store  store.Namespaces
	notice func(named bool) string
	floors *floors

	stopped context.Context // ends the probes
	stop    context.CancelFunc
	probes  sync.WaitGroup

	watches atomic.Int32

	mu       sync.Mutex
	problem  string        // what is wrong; empty if nothing is
	draining bool          // wrong for good; no probe begins any more
	changed  chan struct{} // closed and replaced when problem changes
}

// newHealth begins to probe. The notice, beside that of the floors, names namespaces only if it may.
func newHealth(f *floors, notice func(named bool) string) *health {
	h := &health{store: f.store, notice: notice, floors: f, changed: make(chan struct{})}
	h.stopped, h.stop = context.WithCancel(context.Background())
	h.probes.Go(h.keepProbing)
	return h
}

// close ends the probes and waits for them: the store is not asked any more. Call drain
// first.
func (h *health) close() {
	h.stop()
	h.probes.Wait()
}

func (h *health) keepProbing() {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	h.floors.look(h.stopped)
	for {
		select {
		case <-h.stopped.Done():
			return
		case <-ticker.C:
			h.probe()
			h.floors.look(h.stopped)
		}
	}
}

// probe asks the store for something that waits behind no tenant's operations, notes whether
// it answered, and returns what is wrong. A refusal is an answer, also one that says that the
// store has too much to do: a greedy tenant must not take the server out of rotation.
func (h *health) probe() string {
	problem, ok := h.beginProbe()
	if !ok {
		return problem
	}
	defer h.probes.Done()
	ctx, cancel := context.WithTimeout(h.stopped, probeTimeout)
	defer cancel()
	_, err := h.store.GetNamespace(ctx, store.DefaultNamespace)
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return h.note("the store does not answer", false)
	}
	return h.note("", false)
}

// beginProbe counts a probe in; not while draining, which is what is wrong then.
func (h *health) beginProbe() (problem string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return h.problem, false
	}
	h.probes.Add(1)
	return "", true
}

// drain says NOT_SERVING from now on and ends the watches.
func (h *health) drain() { h.note("draining", true) }

// note changes what is wrong and returns it. Once draining, it stays so.
func (h *health) note(problem string, draining bool) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining || problem == h.problem && !draining {
		return h.problem
	}
	h.problem, h.draining = problem, draining
	close(h.changed)
	h.changed = make(chan struct{})
	return problem
}

// now returns how things stand and a channel that is closed when that changes.
func (h *health) now() (problem string, draining bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.problem, h.draining, h.changed
}

// statusOf is the status of a service when that is wrong.
func (h *health) statusOf(service, problem string) healthpb.HealthCheckResponse_ServingStatus {
	switch {
	case !slices.Contains(healthServices, service):
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	case problem != "":
		return healthpb.HealthCheckResponse_NOT_SERVING
	default:
		return healthpb.HealthCheckResponse_SERVING
	}
}

// Check implements grpc.health.v1.
func (h *health) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	problem, _, _ := h.now()
	current := h.statusOf(req.GetService(), problem)
	if current == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Error(codes.NotFound, "no such service here")
	}
	return &healthpb.HealthCheckResponse{Status: current}, nil
}

// List implements grpc.health.v1.
func (h *health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	problem, _, _ := h.now()
	statuses := map[string]*healthpb.HealthCheckResponse{}
	for _, service := range healthServices {
		statuses[service] = &healthpb.HealthCheckResponse{Status: h.statusOf(service, problem)}
	}
	return &healthpb.HealthListResponse{Statuses: statuses}, nil
}

// Watch implements grpc.health.v1. It ends when the server drains, after it has said so.
func (h *health) Watch(req *healthpb.HealthCheckRequest, out grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	done, err := among(&connectionOf(out.Context()).watches, maxWatches, "watches of the connection")
	if err != nil {
		return err
	}
	defer done()
	done, err = among(&h.watches, maxAllWatches, "watches")
	if err != nil {
		return err
	}
	defer done()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		problem, draining, changed := h.now()
		if current := h.statusOf(req.GetService(), problem); current != last {
			last = current
			if err := out.Send(&healthpb.HealthCheckResponse{Status: current}); err != nil {
				return err
			}
		}
		if draining {
			return errDraining
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return status.FromContextError(out.Context().Err()).Err()
		}
	}
}
