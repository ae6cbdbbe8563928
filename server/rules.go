package server

import (
	"errors"
	"fmt"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // what grpcurl may still ask for

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
)

// rule says who may call a method: somebody with one of the roles, in the namespace that the
// request is about; without roles, anybody.
type rule struct {
	anyOf     []identity.Role
	namespace func(req any) string // nil: the request is about none, or all
	creates   bool                 // the namespace, which is not there yet
	all       func(req any) bool   // whether it takes the role in all namespaces; nil: never
}

// rules are those of all methods. A method that is not in here is not served.
var rules = map[string]rule{
	pb.IdempotencyService_Claim_FullMethodName:    in(identity.Caller, namespaceOfKey),
	pb.IdempotencyService_Renew_FullMethodName:    in(identity.Caller, namespaceOfKey),
	pb.IdempotencyService_Complete_FullMethodName: in(identity.Caller, namespaceOfKey),
	pb.IdempotencyService_Release_FullMethodName:  in(identity.Caller, namespaceOfKey),
	pb.IdempotencyService_Lookup_FullMethodName:   in(identity.Caller, namespaceOfKey),
	// Each operation in a session is authorised by itself, by the rule of its call.
	pb.IdempotencyService_Session_FullMethodName:     as(identity.Caller),
	pb.IdempotencyService_GetTopology_FullMethodName: as(identity.Caller, identity.Operator, identity.Peer),

	pb.AdminService_CreateNamespace_FullMethodName: {anyOf: []identity.Role{identity.Operator}, namespace: namespaceOfSettings, creates: true},
	pb.AdminService_UpdateNamespace_FullMethodName: in(identity.Operator, namespaceOfSettings),
	pb.AdminService_GetNamespace_FullMethodName:    in(identity.Operator, namespaceNamed),
	pb.AdminService_MoveNamespace_FullMethodName:   in(identity.Operator, namespaceField),
	pb.AdminService_ListRecords_FullMethodName:     in(identity.Operator, namespaceField),
	pb.AdminService_InspectRecord_FullMethodName:   in(identity.Operator, namespaceOfKey),
	pb.AdminService_Resolve_FullMethodName:         in(identity.Operator, namespaceOfKey),
	pb.AdminService_ForceRelease_FullMethodName:    in(identity.Operator, namespaceOfKey),
	pb.AdminService_ListNamespaces_FullMethodName:  as(identity.Operator), // shows those of the operator
	pb.AdminService_ListBuckets_FullMethodName:     as(identity.Operator),
	pb.AdminService_ImportOutcome_FullMethodName:   in(identity.Operator, namespaceOfKey),
	pb.AdminService_LiftRecovery_FullMethodName:    {anyOf: []identity.Role{identity.Operator}, namespace: namespaceField, all: liftsForNew},
	pb.AdminService_BeginRecovery_FullMethodName:   inAll(identity.Operator),
	pb.AdminService_Backup_FullMethodName:          inAll(identity.Operator),
	pb.AdminService_AcceptStore_FullMethodName:     inAll(identity.Operator),

	// A peer acts for others, who are authorised again by what they asked for.
	pb.PeerService_Ping_FullMethodName:            as(identity.Peer),
	pb.PeerService_Forward_FullMethodName:         as(identity.Peer),
	pb.PeerService_GetPlacements_FullMethodName:   as(identity.Peer),
	pb.PeerService_PutNamespace_FullMethodName:    as(identity.Peer),
	pb.PeerService_PlaceNamespace_FullMethodName:  as(identity.Peer),
	pb.PeerService_ExportRecords_FullMethodName:   as(identity.Peer),
	pb.PeerService_ForgetRecords_FullMethodName:   as(identity.Peer),
	pb.PeerService_AcceptPeerStore_FullMethodName: as(identity.Peer),

	healthpb.Health_Check_FullMethodName: {},
	healthpb.Health_List_FullMethodName:  {},
	healthpb.Health_Watch_FullMethodName: {},
	// Served only where other machines cannot connect.
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName:      {},
	reflectionalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: {},
}

// in is for those with the role in the namespace that the request is about.
func in(role identity.Role, namespace func(any) string) rule {
	return rule{anyOf: []identity.Role{role}, namespace: namespace}
}

// inAll is for those with the role in all namespaces.
func inAll(role identity.Role) rule {
	return rule{anyOf: []identity.Role{role}, all: func(any) bool { return true }}
}

// as is for those with one of the roles, anywhere.
func as(anyOf ...identity.Role) rule { return rule{anyOf: anyOf} }

// open reports whether anybody may call it, also somebody who is not known.
func (r rule) open() bool { return len(r.anyOf) == 0 }

// authorize refuses what the principal may not ask for.
func (r rule) authorize(a *identity.Authorizer, principal string, req any) error {
	switch {
	case r.open():
		return nil
	case r.all != nil && r.all(req):
		return a.AuthorizeAll(principal, r.anyOf[0])
	case r.namespace == nil:
		return a.AuthorizeAny(principal, r.anyOf...)
	}
	err := a.Authorize(principal, r.anyOf[0], r.namespace(req))
	if r.creates && errors.Is(err, store.ErrNamespaceUnknown) { // whether it exists or not
		return store.Refuse(store.ErrPermissionDenied, fmt.Sprintf("%s needs the role %s in namespace %q", principal, r.anyOf[0], r.namespace(req)))
	}
	return err
}

// liftsForNew reports whether a request is about all namespaces that there will be.
func liftsForNew(req any) bool {
	m, ok := req.(*pb.LiftRecoveryRequest)
	return ok && m.GetForNew()
}

func namespaceOfKey(req any) string { return keyOf(req).Namespace }

func namespaceOfSettings(req any) string {
	if of, ok := req.(interface{ GetNamespace() *pb.Namespace }); ok {
		return of.GetNamespace().GetName()
	}
	return ""
}

func namespaceField(req any) string {
	if of, ok := req.(interface{ GetNamespace() string }); ok {
		return of.GetNamespace()
	}
	return ""
}

func namespaceNamed(req any) string {
	if of, ok := req.(interface{ GetName() string }); ok {
		return of.GetName()
	}
	return ""
}
