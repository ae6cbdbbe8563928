package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Mover gives the keys of a namespace another home. Package region has one.
type Mover interface {
	// MoveNamespace goes on until the move has ended, or ctx ends, and tells of each step.
	MoveNamespace(ctx context.Context, m *pb.MoveNamespaceRequest, tell func(*pb.MoveNamespaceResponse) error) error
}

// MoveNamespace implements the AdminService. A move that the drain breaks off is as far as one
// whose caller has left: whoever asks again goes on with it.
func (s *adminService) MoveNamespace(m *pb.MoveNamespaceRequest, stream grpc.ServerStreamingServer[pb.MoveNamespaceResponse]) error {
	err := s.moveNamespace(m, stream)
	var refused *store.Error
	if errors.As(err, &refused) {
		s.calls.refused(stream.Context(), nil, pb.AdminService_MoveNamespace_FullMethodName, storepb.ToStatus(err), err)
	}
	return err
}

func (s *adminService) moveNamespace(m *pb.MoveNamespaceRequest, stream grpc.ServerStreamingServer[pb.MoveNamespaceResponse]) error {
	if s.mover == nil {
		return unimplemented("this server is of no region: serve it with --region and --topology").Err()
	}
	if len(m.GetActor()) > store.MaxActorBytes {
		return store.Refuse(store.ErrInvalidArgument, "the actor is too long")
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-s.calls.draining:
			cancel(errDraining)
		case <-ctx.Done():
		}
	}()
	m.Actor = actorOf(ctx, m.GetActor())
	err := s.mover.MoveNamespace(ctx, m, stream.Send)
	if errors.Is(context.Cause(ctx), errDraining) {
		return errDraining
	}
	return err
}
