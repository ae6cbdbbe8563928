package main

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/examples/payments/v1"
)

// The provider's cards for tests; any other is good.
const (
	cardDeclined  = "declined"
	cardReplyLost = "reply-lost"
)

// payments is the service. It keeps nothing of its own about repeats.
type payments struct {
	pb.UnimplementedPaymentsServiceServer
	provider provider
	// checks says that findCharge runs before Charge whenever an earlier attempt may have charged.
	checks bool
}

// Charge implements the PaymentsService.
func (p *payments) Charge(ctx context.Context, req *pb.ChargeRequest) (*pb.ChargeResponse, error) {
	reference, err := referenceOf(ctx, req.GetOrderId())
	if err != nil {
		return nil, err
	}
	e := entry{Reference: reference, Cents: req.GetAmountCents(), Card: req.GetCard()}
	if a, ok := client.AttemptFrom(ctx); ok {
		if a.Unsettled && !p.checks {
			return nil, errCheckFirst
		}
		e.Fence = a.Fence
	}
	e, err = p.provider.charge(ctx, e)
	switch {
	case errors.Is(err, errDeclined): // an answer like any other: repeats get the same
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil: // the money may be gone: the guard takes this for unknown
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &pb.ChargeResponse{Charge: chargeOf(e, req.GetOrderId())}, nil
}

// errCheckFirst is what a service can do that cannot find out what an earlier attempt did:
// not charge, and say so. Its code is not one of a final answer, so the key stays unsettled.
var errCheckFirst = status.Error(codes.Internal, "an earlier attempt may have charged: look at the provider before anything else")

// findCharge is the recover hook: it looks at the provider, by the reference that every
// attempt uses, whether an earlier one charged.
func (p *payments) findCharge(ctx context.Context, req *pb.ChargeRequest, _ *client.Attempt) (*pb.ChargeResponse, bool, error) {
	reference, err := referenceOf(ctx, req.GetOrderId())
	if err != nil {
		return nil, false, err
	}
	found, err := p.provider.find(ctx, reference)
	if err != nil || len(found) == 0 {
		return nil, false, err
	}
	return &pb.ChargeResponse{Charge: chargeOf(found[0], req.GetOrderId())}, true, nil
}

// ListCharges implements the PaymentsService.
func (p *payments) ListCharges(ctx context.Context, req *pb.ListChargesRequest) (*pb.ListChargesResponse, error) {
	reference, err := referenceOf(ctx, req.GetOrderId())
	if err != nil {
		return nil, err
	}
	found, err := p.provider.find(ctx, reference)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	answer := &pb.ListChargesResponse{}
	for _, e := range found {
		answer.Charges = append(answer.Charges, chargeOf(e, req.GetOrderId()))
	}
	return answer, nil
}

func chargeOf(e entry, order string) *pb.Charge {
	return &pb.Charge{Id: e.ID, OrderId: order, AmountCents: e.Cents}
}

// referenceOf is our own reference for an order, by which the provider finds its charges.
func referenceOf(ctx context.Context, order string) (string, error) {
	name, err := account(ctx)
	return name + "/" + order, err
}

const metadataAccount = "account"

// account is who calls, and owns the keys of its calls. Here the caller is believed; in
// earnest this comes from its verified token or certificate.
func account(ctx context.Context) (string, error) {
	names := metadata.ValueFromIncomingContext(ctx, metadataAccount)
	if len(names) != 1 || names[0] == "" {
		return "", status.Errorf(codes.Unauthenticated, "send metadata %q", metadataAccount)
	}
	return names[0], nil
}
