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
	answer, later, err := retry(ctx, &c.budget, func() (store.ClaimAnswer, error) {
		return ask(ctx, c, req.Key, (*keyCalls).Claim, storepb.ClaimRequestToProto(req), storepb.ClaimAnswerFromProto)
	})
	if answer.Granted != nil {
		answer.Granted.HeldFor += later // counts from when the caller sent it first
	}
	return answer, err
}

// Renew implements [store.Store].
func (c *Client) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.RenewAnswer{}, err
	}
	answer, later, err := retry(ctx, &c.budget, func() (store.RenewAnswer, error) {
		return ask(ctx, c, req.Key, (*keyCalls).Renew, storepb.RenewRequestToProto(req), storepb.RenewAnswerFromProto)
	})
	answer.HeldFor += later // counts from when the caller sent it first
	return answer, err
}

// Complete implements [store.Store].
func (c *Client) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.CompleteAnswer{}, err
	}
	answer, _, err := retry(ctx, &c.budget, func() (store.CompleteAnswer, error) {
		return ask(ctx, c, req.Key, (*keyCalls).Complete, storepb.CompleteRequestToProto(req), storepb.CompleteAnswerFromProto)
	})
	return answer, err
}

// Release implements [store.Store].
func (c *Client) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.ReleaseAnswer{}, err
	}
	answer, _, err := retry(ctx, &c.budget, func() (store.ReleaseAnswer, error) {
		return ask(ctx, c, req.Key, (*keyCalls).Release, storepb.ReleaseRequestToProto(req), storepb.ReleaseAnswerFromProto)
	})
	return answer, err
}

// Lookup implements [store.Store].
func (c *Client) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	if err := req.Validate(); err != nil {
		return store.LookupAnswer{}, err
	}
	answer, _, err := retry(ctx, &c.budget, func() (store.LookupAnswer, error) {
		return ask(ctx, c, req.Key, (*keyCalls).Lookup, storepb.LookupRequestToProto(req), storepb.LookupAnswerFromProto)
	})
	return answer, err
}
