package server

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
)

// Regions join a server with those of other regions. Package region has them.
type Regions interface {
	// Over returns what the services ask, over what answers for the server's own region.
	Over(local store.Backend) store.Backend
	// Register registers what other regions ask, over the same.
	Register(s grpc.ServiceRegistrar, local store.Backend)
	// Topology says which regions there are, and where the keys of all namespaces live.
	Topology() *pb.GetTopologyResponse
	// AcceptStore has all regions but one know a store as that one's from now on.
	AcceptStore(ctx context.Context, req store.AcceptStoreRequest) error
	// Drain ends what waits in other regions.
	Drain()
}

// GetTopology implements the IdempotencyService. It shows the namespaces that the caller may use.
func (s *keyService) GetTopology(ctx context.Context, _ *pb.GetTopologyRequest) (*pb.GetTopologyResponse, error) {
	if s.regions == nil {
		return nil, unimplemented("there are no regions here").Err()
	}
	m := s.regions.Topology()
	if s.calls.identity.Identifies() {
		authorizer, principal := s.calls.identity.Authorizer(), principalOf(ctx)
		all := m.Placements
		m.Placements = nil
		for _, p := range all {
			if authorizer.MayUse(principal, p.GetNamespace()) {
				m.Placements = append(m.Placements, p)
			}
		}
	}
	return m, nil
}

// AuthorizeForwarded refuses what somebody may not do, a method on a namespace, who asked for it
// in another region; or, without a namespace, a method that is about all. Who is not told apart there is nobody here.
func AuthorizeForwarded(a *identity.Authority, caller, method, namespace string) error {
	r, served := rules[method]
	switch {
	case !served || r.open():
		return notServed(method).Err()
	case !a.Identifies():
		return nil
	case r.namespace == nil && r.all != nil:
		return a.Authorizer().AuthorizeAll(caller, r.anyOf[0])
	}
	return a.Authorizer().Authorize(caller, r.anyOf[0], namespace)
}

// PrincipalOf is who makes a call; empty where nobody is told apart.
func PrincipalOf(ctx context.Context) string { return principalOf(ctx) }
