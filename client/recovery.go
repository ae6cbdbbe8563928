package client

import (
	"context"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// ImportOutcome implements [store.Records]. For the record see [Client.InspectRecord].
func (c *Client) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.ImportAnswer{}, err
	}
	return call(ctx, c.admin.ImportOutcome, storepb.ImportRequestToProto(req), storepb.ImportAnswerFromProto)
}

// BeginRecovery implements [store.Recovery].
func (c *Client) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	if err := req.Validate(); err != nil {
		return store.BegunRecovery{}, err
	}
	return call(ctx, c.admin.BeginRecovery, storepb.BeginRecoveryRequestToProto(req), storepb.BegunRecoveryFromProto)
}

// LiftRecovery implements [store.Recovery].
func (c *Client) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	if err := req.Validate(); err != nil {
		return store.Namespace{}, err
	}
	return call(ctx, c.admin.LiftRecovery, storepb.LiftRecoveryRequestToProto(req), namespaceOf[*pb.LiftRecoveryResponse])
}
