package server

import (
	"context"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// AcceptStore implements the AdminService.
func (s *adminService) AcceptStore(ctx context.Context, m *pb.AcceptStoreRequest) (*pb.AcceptStoreResponse, error) {
	req := store.AcceptStoreRequest{Region: m.GetRegion(), StoreID: m.GetStoreId(), Actor: actorOf(ctx, m.GetActor()), Reason: m.GetReason(), Again: m.GetAgain()}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if s.regions == nil {
		return nil, unimplemented("this server is of no region: serve it with --region and --topology").Err()
	}
	ctx, cancel := context.WithTimeout(ctx, maxOperatorTime)
	defer cancel()
	if err := s.regions.AcceptStore(ctx, req); err != nil {
		return nil, err
	}
	return &pb.AcceptStoreResponse{}, nil
}
