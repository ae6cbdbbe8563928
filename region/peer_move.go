package region

import (
	"context"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// movesNamespace checks who asks for a step of a move, and that the one in whose name may do that. A
// store that has not joined takes none: it may know the placements of yesterday.
func (s *service) movesNamespace(ctx context.Context, m interface {
	asking
	GetCaller() string
	GetNamespace() string
}) (*localParty, error) {
	if _, err := s.believed(ctx, m); err != nil {
		return nil, err
	}
	if err := s.authorize(ctx, m.GetCaller(), pb.AdminService_MoveNamespace_FullMethodName, m.GetNamespace()); err != nil {
		return nil, err
	}
	return &localParty{&movedStore{s.local, s.region}, s.region.config.Name}, s.region.atHome()
}

// PlaceNamespace implements the PeerService.
func (s *service) PlaceNamespace(ctx context.Context, m *pb.PlaceNamespaceRequest) (*pb.PlaceNamespaceResponse, error) {
	here, err := s.movesNamespace(ctx, m)
	var p store.Placement
	if err == nil {
		p, err = storepb.PlacementFromProto(m.GetPlacement())
	}
	var placed store.Placed
	if err == nil {
		placed, err = here.Place(ctx, m.GetNamespace(), p)
	}
	if err != nil {
		return nil, wire(err)
	}
	return storepb.PlacedToProto(placed), nil
}

// ExportRecords implements the PeerService.
func (s *service) ExportRecords(ctx context.Context, m *pb.ExportRecordsRequest) (*pb.ExportRecordsResponse, error) {
	here, err := s.movesNamespace(ctx, m)
	var page Exported
	if err == nil {
		page, err = here.Export(ctx, m.GetNamespace(), m.GetRevision(), m.GetPageToken())
	}
	if err != nil {
		return nil, wire(err)
	}
	resp := &pb.ExportRecordsResponse{NextPageToken: page.NextPageToken}
	for _, in := range page.Records {
		resp.Records = append(resp.Records, storepb.MovedToProto(in))
	}
	return resp, nil
}

// ForgetRecords implements the PeerService.
func (s *service) ForgetRecords(ctx context.Context, m *pb.ForgetRecordsRequest) (*pb.ForgetRecordsResponse, error) {
	here, err := s.movesNamespace(ctx, m)
	var more bool
	if err == nil {
		more, err = here.Forget(ctx, m.GetNamespace(), m.GetRevision())
	}
	if err != nil {
		return nil, wire(err)
	}
	return &pb.ForgetRecordsResponse{More: more}, nil
}
