package server

import (
	"context"
	"time"

	"google.golang.org/grpc/tap"

	"github.com/idemd/idemd/store"
)

// received notes when a call arrived, as soon as its headers are read.
func received(ctx context.Context, _ *tap.Info) (context.Context, error) {
	return context.WithValue(ctx, receiptKey{}, time.Now()), nil
}

type receiptKey struct{}

// sinceReceipt is how long ago the call of ctx arrived; zero if it did not come over gRPC.
func sinceReceipt(ctx context.Context) time.Duration {
	at, ok := ctx.Value(receiptKey{}).(time.Time)
	if !ok {
		return 0
	}
	return time.Since(at)
}

// holding adds to HeldFor how long a request was in the server's hands before the store
// got it: it waited for another attempt, say. A holder adds HeldFor to the instant at
// which it sent the request, so too much would make it act after its lease. That is why
// the time until the store's *answer* does not count: part of it is after the decision.
// What the store itself knows of the time before its decision it puts in HeldFor.
type holding struct{ store.Backend }

// Claim implements [store.Store].
func (h holding) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	held := sinceReceipt(ctx)
	answer, err := h.Backend.Claim(ctx, req)
	if answer.Granted != nil {
		granted := *answer.Granted // answers may be shared
		granted.HeldFor += held
		answer.Granted = &granted
	}
	return answer, err
}

// Renew implements [store.Store].
func (h holding) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	held := sinceReceipt(ctx)
	answer, err := h.Backend.Renew(ctx, req)
	if err == nil {
		answer.HeldFor += held
	}
	return answer, err
}
