package client

import (
	"context"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Claim implements [store.Store]. The server makes ClaimRequest.Wait work; the deadline
// of ctx bounds it, and is kept a little early so that the answer still arrives.
func (c *Client) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.ClaimAnswer{}, err
	}
	return call(ctx, c.keys.Claim, storepb.ClaimRequestToProto(req), storepb.ClaimAnswerFromProto)
}

// Renew implements [store.Store].
func (c *Client) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.RenewAnswer{}, err
	}
	return call(ctx, c.keys.Renew, storepb.RenewRequestToProto(req), storepb.RenewAnswerFromProto)
}

// Complete implements [store.Store].
func (c *Client) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.CompleteAnswer{}, err
	}
	return call(ctx, c.keys.Complete, storepb.CompleteRequestToProto(req), storepb.CompleteAnswerFromProto)
}

// Release implements [store.Store].
func (c *Client) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.ReleaseAnswer{}, err
	}
	return call(ctx, c.keys.Release, storepb.ReleaseRequestToProto(req), storepb.ReleaseAnswerFromProto)
}

// Lookup implements [store.Store].
func (c *Client) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.LookupAnswer{}, err
	}
	return call(ctx, c.keys.Lookup, storepb.LookupRequestToProto(req), storepb.LookupAnswerFromProto)
}
