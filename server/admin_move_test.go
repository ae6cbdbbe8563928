package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// scriptedMover tells of steps and then ends with an error, or once nobody waits any more.
type scriptedMover struct {
	asked *pb.MoveNamespaceRequest
	steps []string
	ends  error // nil: it goes on until ctx ends
}

func (m *scriptedMover) MoveNamespace(ctx context.Context, req *pb.MoveNamespaceRequest, tell func(*pb.MoveNamespaceResponse) error) error {
	m.asked = req
	for _, step := range m.steps {
		if err := tell(&pb.MoveNamespaceResponse{Step: step}); err != nil {
			return err
		}
	}
	if m.ends != nil {
		return m.ends
	}
	<-ctx.Done()
	return ctx.Err()
}

func moveRig(t *testing.T, mover Mover) (*rig, func() (string, error)) {
	t.Helper()
	r := newRigOf(t, Config{Backend: storetest.NewMemory(storetest.NewClock()), Mover: mover})
	stream, err := pb.NewAdminServiceClient(r.connect()).MoveNamespace(t.Context(), &pb.MoveNamespaceRequest{
		Namespace: "orders", ToRegion: "eu", Patience: durationpb.New(time.Second), Actor: "alice",
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, func() (string, error) {
		step, err := stream.Recv()
		return step.GetStep(), err
	}
}

func TestMoveNamespaceTellsOfEachStep(t *testing.T) {
	mover := &scriptedMover{steps: []string{"frozen", "sealed"}, ends: store.Refuse(store.ErrWrongRegion, "ask elsewhere")}
	r, next := moveRig(t, mover)
	for _, want := range mover.steps {
		if step, err := next(); err != nil || step != want {
			t.Fatalf("got %q, %v, want %q", step, err, want)
		}
	}
	_, err := next()
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "ask elsewhere") {
		t.Fatalf("got %v", err)
	}
	if mover.asked.GetActor() != "alice" || mover.asked.GetToRegion() != "eu" {
		t.Errorf("the mover was asked for %v", mover.asked)
	}
	if log := r.log.String(); !strings.Contains(log, "call refused") || !strings.Contains(log, "WRONG_REGION") {
		t.Errorf("the log does not say that it was refused:\n%s", log)
	}
}

// A move holds no drain up: whoever asks again goes on with it.
func TestMoveNamespaceEndsWithTheDrain(t *testing.T) {
	r, next := moveRig(t, &scriptedMover{steps: []string{"waiting"}})
	if _, err := next(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Shutdown(context.Background()) }()
	if _, err := next(); status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestMoveNamespaceNeedsRegions(t *testing.T) {
	_, next := moveRig(t, nil)
	if _, err := next(); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "--topology") {
		t.Fatalf("got %v", err)
	}
}
