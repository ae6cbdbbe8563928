package client_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	paymentsv1 "github.com/idemd/idemd/proto/examples/payments/v1"
)

// A shop calls a bank. The shop's handler charged at the bank and then failed; it runs again
// for the repeat, and calls the bank under the same key, which does not charge again.
func ExampleStepKey() {
	s, stop := memory()
	defer stop()
	guard := func() *grpc.Server { return grpc.NewServer(client.NewGuard(s, client.NoOwner()).ServerOptions()...) }

	bank, stop := servePayments(guard(), &provider{charge: func(context.Context, *paymentsv1.ChargeRequest) error {
		fmt.Println("the bank charges")
		return nil
	}}, grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor()))
	defer stop()

	fails := true
	shop, stop := servePayments(guard(), &provider{charge: func(ctx context.Context, req *paymentsv1.ChargeRequest) error {
		response, err := bank.Charge(ctx, req, client.StepKey(ctx, "charge-card"))
		fmt.Println("the shop got", response.GetCharge().GetId(), err)
		if fails {
			fails = false
			return status.Error(codes.Unavailable, "the shop's database is gone")
		}
		return err
	}})
	defer stop()

	ctx := metadata.AppendToOutgoingContext(context.Background(), client.MetadataKey, "order-1001")
	for range 2 {
		_, err := shop.Charge(ctx, &paymentsv1.ChargeRequest{OrderId: "1001", AmountCents: 4200})
		fmt.Println(status.Code(err))
	}
	// Output:
	// the bank charges
	// the shop got charge-1 <nil>
	// Unavailable
	// the shop got charge-1 <nil>
	// OK
}
