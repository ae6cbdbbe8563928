package bench

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/client"
	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// guardedMethod stands for a method of somebody's service.
const guardedMethod = idemdv1.IdempotencyService_Claim_FullMethodName

// StartGuarded starts a bare server on a free port with a guard in front of one of its
// methods, which asks the idemd of o.
func StartGuarded(o *Options) (addr string, stop func(), err error) {
	idemd, err := dial(o.Addr, o.Conns)
	if err != nil {
		return "", nil, err
	}
	s, err := startGuarded(o, idemd)
	if err != nil {
		idemd.close()
		return "", nil, err
	}
	return s.addr, func() { s.stop(); idemd.close() }, nil
}

func startGuarded(o *Options, idemd *side) (*bareServer, error) {
	guard := client.NewGuard(client.New(idemd),
		client.NoOwner(), client.Namespace(o.Namespace), client.Method(guardedMethod, client.Policy{Required: true}))
	return startBare(o.OutcomeBytes, guard.ServerOptions()...)
}

// Invoke spreads the guard's calls over the connections; it makes a side a
// [grpc.ClientConnInterface].
func (s *side) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.pick().Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements [grpc.ClientConnInterface].
func (s *side) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return s.pick().NewStream(ctx, desc, method, opts...)
}

func (s *side) pick() *grpc.ClientConn {
	return s.conns[s.next.Add(1)%uint64(len(s.conns))]
}

// askGuarded calls the guarded method, or the same on the bare server, under a key.
func (w *worker) askGuarded(ctx context.Context, id string, replayed bool) error {
	var header, trailer metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, client.MetadataKey, id)
	if err := w.askCompleted(ctx, w.claim(id), nil, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
		return err
	}
	if got := len(header.Get(client.MetadataReplayed)) > 0; got != replayed || len(trailer.Get(client.MetadataNotRecorded)) > 0 {
		return fmt.Errorf("guarded call %q: got header %v and trailer %v, want it recorded, and replayed: %v", id, header, trailer, replayed)
	}
	return nil
}

func callGuarded(ctx context.Context, w *worker) error {
	return w.askGuarded(ctx, w.nextID(), false)
}

func fillGuarded(ctx context.Context, w *worker) error {
	return w.fill(ctx, callGuarded)
}

func replayGuarded(ctx context.Context, w *worker) error {
	return w.askGuarded(ctx, w.nextReplay(), true)
}
