package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// adminService is the AdminService over a backend. Its errors are the store's; the
// interceptors turn them into statuses.
type adminService struct {
	pb.UnimplementedAdminServiceServer
	backend    store.Backend
	metrics    *Metrics
	authorizer *identity.Authorizer
	calls      *calls
	mover      Mover      // nil: there are no regions
	regions    Regions    // nil: there are none
	backup     BackupFunc // nil: there are none
}

// ListRecords implements the AdminService.
func (s *adminService) ListRecords(ctx context.Context, m *pb.ListRecordsRequest) (*pb.ListRecordsResponse, error) {
	req, err := accept(s.metrics, opListRecords, m, storepb.ListRequestFromProto)
	if err != nil {
		return nil, err
	}
	page, err := s.backend.ListRecords(ctx, req)
	return respond(page, err, storepb.RecordPageToProto)
}

// InspectRecord implements the AdminService.
func (s *adminService) InspectRecord(ctx context.Context, m *pb.InspectRecordRequest) (*pb.InspectRecordResponse, error) {
	key, err := accept(s.metrics, opInspectRecord, m, storepb.InspectRequestFromProto)
	if err != nil {
		return nil, err
	}
	inspection, err := s.backend.InspectRecord(ctx, key)
	return respond(inspection, err, storepb.InspectionToProto)
}

// Resolve implements the AdminService.
func (s *adminService) Resolve(ctx context.Context, m *pb.ResolveRequest) (*pb.ResolveResponse, error) {
	req, err := accept(s.metrics, opResolve, m, acted(ctx, storepb.ResolveRequestFromProto, func(r *store.ResolveRequest) *string { return &r.Actor }))
	if err != nil {
		return nil, err
	}
	rec, err := s.backend.Resolve(ctx, req)
	return respond(rec, err, func(rec *store.Record) *pb.ResolveResponse {
		return &pb.ResolveResponse{Record: storepb.SettledToProto(rec)}
	})
}

// ForceRelease implements the AdminService.
func (s *adminService) ForceRelease(ctx context.Context, m *pb.ForceReleaseRequest) (*pb.ForceReleaseResponse, error) {
	req, err := accept(s.metrics, opForceRelease, m, acted(ctx, storepb.ForceReleaseRequestFromProto, func(r *store.ForceReleaseRequest) *string { return &r.Actor }))
	if err != nil {
		return nil, err
	}
	rec, err := s.backend.ForceRelease(ctx, req)
	return respond(rec, err, func(rec *store.Record) *pb.ForceReleaseResponse {
		return &pb.ForceReleaseResponse{Record: storepb.SettledToProto(rec)}
	})
}

// acted reads a request of an operator's, and notes who that is.
func acted[M, R any](ctx context.Context, read func(M) (R, error), actor func(*R) *string) func(M) (R, error) {
	return func(m M) (R, error) {
		req, err := read(m)
		who := actor(&req)
		*who = actorOf(ctx, *who)
		return req, err
	}
}

// actorOf is who is noted for what an operator does: the principal and, beside it, whom they say
// they are. Where nobody is told apart, that alone.
func actorOf(ctx context.Context, claimed string) string {
	principal := principalOf(ctx)
	room := store.MaxActorBytes - len(principal) - len(" ()")
	switch {
	case principal == "":
		return claimed
	case claimed == "" || claimed == principal || room <= 0:
		return principal
	case len(claimed) > room:
		claimed = strings.ToValidUTF8(claimed[:room], "")
	}
	return fmt.Sprintf("%s (%s)", principal, claimed)
}

// CreateNamespace implements the AdminService.
func (s *adminService) CreateNamespace(ctx context.Context, m *pb.CreateNamespaceRequest) (*pb.CreateNamespaceResponse, error) {
	ns, err := accept(s.metrics, opCreateNamespace, m, createdNamespace)
	if err != nil {
		return nil, err
	}
	ns, err = s.backend.CreateNamespace(ctx, ns)
	return respond(ns, err, func(ns store.Namespace) *pb.CreateNamespaceResponse {
		return &pb.CreateNamespaceResponse{Namespace: storepb.NamespaceToProto(ns)}
	})
}

func createdNamespace(m *pb.CreateNamespaceRequest) (store.Namespace, error) {
	ns, err := storepb.NamespaceFromProto(m.GetNamespace())
	ns.PastRetentions = nil // which are between stores
	return ns.WithDefaults(), err
}

// GetNamespace implements the AdminService.
func (s *adminService) GetNamespace(ctx context.Context, m *pb.GetNamespaceRequest) (*pb.GetNamespaceResponse, error) {
	name, err := accept(s.metrics, opGetNamespace, m, nameOfNamespace)
	if err != nil {
		return nil, err
	}
	ns, err := s.backend.GetNamespace(ctx, string(name))
	return respond(ns, err, func(ns store.Namespace) *pb.GetNamespaceResponse {
		return &pb.GetNamespaceResponse{Namespace: storepb.NamespaceToProto(ns)}
	})
}

// namespaceName is all that GetNamespace is asked with.
type namespaceName string

// Validate checks the name.
func (n *namespaceName) Validate() error { return store.ValidateNamespaceName(string(*n)) }

func nameOfNamespace(m *pb.GetNamespaceRequest) (namespaceName, error) {
	return namespaceName(m.GetName()), nil
}

// UpdateNamespace implements the AdminService.
func (s *adminService) UpdateNamespace(ctx context.Context, m *pb.UpdateNamespaceRequest) (*pb.UpdateNamespaceResponse, error) {
	// The settings are checked against the namespace's tier, which the backend knows.
	ns, err := storepb.UpdateFromProto(m)
	if err != nil {
		s.metrics.refused(opUpdateNamespace, "", err)
		return nil, err
	}
	ns, err = s.backend.UpdateNamespace(ctx, ns)
	return respond(ns, err, func(ns store.Namespace) *pb.UpdateNamespaceResponse {
		return &pb.UpdateNamespaceResponse{Namespace: storepb.NamespaceToProto(ns)}
	})
}

// ListNamespaces implements the AdminService. It shows an operator their own.
func (s *adminService) ListNamespaces(ctx context.Context, _ *pb.ListNamespacesRequest) (*pb.ListNamespacesResponse, error) {
	list, err := s.backend.ListNamespaces(ctx)
	list = slices.DeleteFunc(slices.Clone(list), func(ns store.Namespace) bool {
		return s.authorizer.Authorize(principalOf(ctx), identity.Operator, ns.Name) != nil
	})
	return respond(list, err, func(list []store.Namespace) *pb.ListNamespacesResponse {
		return &pb.ListNamespacesResponse{Namespaces: storepb.NamespacesToProto(list)}
	})
}

// ListBuckets implements the AdminService.
func (s *adminService) ListBuckets(ctx context.Context, _ *pb.ListBucketsRequest) (*pb.ListBucketsResponse, error) {
	list, err := s.backend.Buckets(ctx)
	return respond(list, err, func(list []store.Bucket) *pb.ListBucketsResponse {
		return &pb.ListBucketsResponse{Buckets: storepb.BucketsToProto(list)}
	})
}
