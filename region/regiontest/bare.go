package regiontest

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Bare is a store that asks one server, once, and goes nowhere else: what callers are who do
// not use the Go client.
func Bare(cc grpc.ClientConnInterface) store.Store {
	return bare{pb.NewIdempotencyServiceClient(cc)}
}

type bare struct {
	service pb.IdempotencyServiceClient
}

// Claim implements [store.Store].
func (b bare) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return ask(ctx, b.service.Claim, storepb.ClaimRequestToProto(req), storepb.ClaimAnswerFromProto)
}

// Renew implements [store.Store].
func (b bare) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	return ask(ctx, b.service.Renew, storepb.RenewRequestToProto(req), storepb.RenewAnswerFromProto)
}

// Complete implements [store.Store].
func (b bare) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	return ask(ctx, b.service.Complete, storepb.CompleteRequestToProto(req), storepb.CompleteAnswerFromProto)
}

// Release implements [store.Store].
func (b bare) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	return ask(ctx, b.service.Release, storepb.ReleaseRequestToProto(req), storepb.ReleaseAnswerFromProto)
}

// Lookup implements [store.Store].
func (b bare) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	return ask(ctx, b.service.Lookup, storepb.LookupRequestToProto(req), storepb.LookupAnswerFromProto)
}

func ask[Request, Response, Answer any](
	ctx context.Context,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
	read func(Response) (Answer, error),
) (answer Answer, err error) {
	response, err := method(ctx, request)
	if err != nil {
		return answer, storepb.FromStatus(err)
	}
	return read(response)
}
