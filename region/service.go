package region

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// service is the PeerService: what other regions ask of this one. It stands over what answers
// for this region's own keys, so that a claim that waits does so at home, and sends nothing on.
type service struct {
	pb.UnimplementedPeerServiceServer
	region *Region
	local  store.Backend
}

// Register registers the PeerService over what answers for this region's own keys.
func (r *Region) Register(s grpc.ServiceRegistrar, local store.Backend) {
	pb.RegisterPeerServiceServer(s, &service{region: r, local: local})
}

// meant refuses what is meant for another region.
func (s *service) meant(region string) error {
	own := s.region.config.Name
	if region == own {
		return nil
	}
	return store.Refuse(store.ErrWrongRegion, fmt.Sprintf(
		"this is region %q, and region %q is meant; in the asking region's topology file %q has the address of %q", own, region, region, own))
}

// asking is a request of another region.
type asking interface {
	GetRegion() string
	GetFromRegion() string
	GetFromStoreId() string
}

// asker is the region that asks, which must be another one that is known here.
func (s *service) asker(ctx context.Context, m asking) (*peer, error) {
	if err := s.meant(m.GetRegion()); err != nil {
		return nil, err
	}
	own, from := s.region.config.Name, m.GetFromRegion()
	p := s.region.peers[from]
	switch {
	case from == own:
		return nil, store.Refuse(store.ErrWrongRegion, fmt.Sprintf("the asking server says that it is region %q too; it has this one's name, or itself as a peer", own))
	case p == nil:
		return nil, store.Refuse(store.ErrWrongRegion, fmt.Sprintf("the topology of region %q does not name the asking region, %q", own, from))
	}
	if who := s.region.config.Caller(ctx); p.place.Principal != "" && who != "" && who != p.place.Principal {
		return nil, store.Refuse(store.ErrPermissionDenied, fmt.Sprintf("by the topology of region %q, %s is not the principal of region %q", own, who, from))
	}
	return p, nil
}

// believed is the region that asks, if it has the store that is known.
func (s *service) believed(ctx context.Context, m asking) (*peer, error) {
	p, err := s.asker(ctx, m)
	if err != nil {
		return nil, err
	}
	known, shown := s.region.member().Peers[p.name].StoreID, m.GetFromStoreId()
	if known == "" || known == shown {
		return p, nil
	}
	return nil, &store.Error{
		Sentinel: store.ErrNoHome, RetryAfter: time.Second,
		Detail: fmt.Sprintf("region %q does not believe who asks as region %q: %v", s.region.config.Name, p.name, s.region.strange(p.name, shown)),
	}
}

// Ping implements the PeerService. A region with another store than the one that is known is told
// which that is, and not heeded.
func (s *service) Ping(ctx context.Context, m *pb.PingRequest) (*pb.PingResponse, error) {
	from, err := s.asker(ctx, m)
	if err != nil {
		return nil, wire(err)
	}
	if _, err := s.believed(ctx, m); err == nil {
		if err := from.heeded(ctx, knownFromProto(m.GetKnown())); err != nil {
			return nil, wire(err)
		}
	}
	own := s.region.member()
	resp := &pb.PingResponse{
		Region: s.region.config.Name, PlacementsDigest: s.region.atlas.Load().digest, Serving: s.region.healthy.Load(),
		StoreId: own.StoreID, Joined: own.Joined, Accepted: acceptanceToProto(own.Accepted),
	}
	if at := own.ReplacedAt(from.name, m.GetFromStoreId()); !at.IsZero() {
		resp.AskerReplacedAt = timestamppb.New(at)
	}
	for name, known := range own.Peers {
		resp.KnownStores = append(resp.KnownStores, knownToProto(name, known))
	}
	return resp, nil
}

// GetPlacements implements the PeerService. The store is looked at anew, as another process may have
// changed it. The answer may be what a first placement is made by: before that, the asker is asked
// for what it has placed.
func (s *service) GetPlacements(ctx context.Context, m *pb.GetPlacementsRequest) (*pb.GetPlacementsResponse, error) {
	from, err := s.believed(ctx, m)
	if err != nil {
		return nil, wire(err)
	}
	if err := s.region.refresh(ctx); err != nil {
		return nil, wire(err)
	}
	if s.region.atlas.Load().unsettled && len(metadata.ValueFromIncomingContext(ctx, askingBack)) == 0 {
		from.answerBy(ctx)
	}
	return s.region.atlas.Load().answer, nil
}

// PutNamespace implements the PeerService.
func (s *service) PutNamespace(ctx context.Context, m *pb.PutNamespaceRequest) (*pb.PutNamespaceResponse, error) {
	if _, err := s.believed(ctx, m); err != nil {
		return nil, wire(err)
	}
	ns, err := storepb.NamespaceFromProto(m.GetNamespace())
	if err != nil {
		return nil, wire(err)
	}
	put, method := s.create, pb.AdminService_CreateNamespace_FullMethodName
	if m.GetUpdate() {
		put, method = s.local.UpdateNamespace, pb.AdminService_UpdateNamespace_FullMethodName
	}
	if err = s.authorize(ctx, m.GetCaller(), method, ns.Name); err == nil {
		ns, err = put(ctx, ns)
	}
	if err == nil {
		err = s.region.refresh(ctx)
	}
	if err != nil {
		return nil, wire(err)
	}
	return &pb.PutNamespaceResponse{Namespace: storepb.NamespaceToProto(ns)}, nil
}

func (s *service) create(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return s.region.createHere(ctx, s.local, ns)
}

func (s *service) authorize(ctx context.Context, caller, method, namespace string) error {
	if s.region.config.Authorize == nil {
		return nil
	}
	return s.region.config.Authorize(ctx, caller, method, namespace)
}

// refusal is an error of a store as a status. Whoever logs it still sees the cause.
type refusal struct{ error }

// GRPCStatus makes it the status of the call.
func (r refusal) GRPCStatus() *status.Status { return storepb.ToStatus(r.error) }

// Unwrap lets errors.As see the refusal.
func (r refusal) Unwrap() error { return r.error }

func wire(err error) error { return refusal{err} }
