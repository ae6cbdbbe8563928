package bench

import (
	"context"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/client"
	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// byClient asks by the Go client, whose operations share messages, instead of by calls.
type byClient struct {
	idemdv1.IdempotencyServiceClient // nil: only what the operations here need is there
	client                           *client.Client
}

// Claim asks for a claim.
func (b byClient) Claim(ctx context.Context, m *idemdv1.ClaimRequest, _ ...grpc.CallOption) (*idemdv1.ClaimResponse, error) {
	req, err := storepb.ClaimRequestFromProto(m)
	if err != nil {
		return nil, err
	}
	answer, err := b.client.Claim(ctx, req)
	if err != nil {
		return nil, err
	}
	return storepb.ClaimAnswerToProto(answer), nil
}

// Complete asks for a completion.
func (b byClient) Complete(ctx context.Context, m *idemdv1.CompleteRequest, _ ...grpc.CallOption) (*idemdv1.CompleteResponse, error) {
	req, err := storepb.CompleteRequestFromProto(m)
	if err != nil {
		return nil, err
	}
	answer, err := b.client.Complete(ctx, req)
	if err != nil {
		return nil, err
	}
	return storepb.CompleteAnswerToProto(answer), nil
}
