package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/validator"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	paymentsv1 "github.com/idemd/idemd/proto/examples/payments/v1"
)

// A service that declares in its .proto what needs a guard is guarded by these few lines.
func ExampleNewGuard() {
	s, stop := memory() // elsewhere: client.Dial
	defer stop()
	guard := client.NewGuard(s, client.NoOwner())
	server := grpc.NewServer(guard.ServerOptions()...)
	paymentsv1.RegisterPaymentsServiceServer(server, &provider{})
	if err := guard.Verify(server); err != nil { // a method that nobody has declared
		log.Fatal(err)
	}

	calls, stop := serve(server)
	defer stop()
	ctx := metadata.AppendToOutgoingContext(context.Background(), client.MetadataKey, "order-1001")
	for range 2 {
		var header metadata.MD
		response, err := calls.Charge(ctx, &paymentsv1.ChargeRequest{OrderId: "1001", AmountCents: 4200}, grpc.Header(&header))
		fmt.Println(response.GetCharge().GetId(), header.Get(client.MetadataReplayed), err)
	}
	_, err := calls.Charge(ctx, &paymentsv1.ChargeRequest{OrderId: "1001", AmountCents: 4300})
	fmt.Println(status.Code(err))
	// Output:
	// charge-1 [] <nil>
	// charge-1 [true] <nil>
	// FailedPrecondition
}

// The guard among other interceptors. Those before it see every call, those after it only
// the calls that act:
//
//   - recovery and logging are outside. A panic passes the guard, which gives the key up
//     as unknown; and repeats and refusals are logged like other calls.
//   - auth is outside, as Owner needs the identity, and so is what decides whether the
//     caller may do this at all: a repeat tells what the first call was answered.
//   - limits on the rate are outside too: they refuse without a claim, and can be tried again.
//   - validation is inside. What is valid changes with a deployment, and a repeat of what
//     was done must be told so, not that it is invalid now. That a request is invalid is an
//     outcome like others: whoever mends the request makes a new key.
func ExampleGuard_ServerOptions() {
	s, stop := memory()
	defer stop()
	guard := client.NewGuard(s, client.Owner(func(ctx context.Context) (string, error) {
		return ctx.Value(customer{}).(string), nil
	}))
	logger := logging.LoggerFunc(func(context.Context, logging.Level, string, ...any) {})
	options := []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		recovery.UnaryServerInterceptor(),
		logging.UnaryServerInterceptor(logger),
		auth.UnaryServerInterceptor(authenticate),
	)}
	options = append(options, guard.ServerOptions()...)
	options = append(options, grpc.ChainUnaryInterceptor(validator.UnaryServerInterceptor()))

	calls, stop := servePayments(grpc.NewServer(options...), &provider{})
	defer stop()
	for _, name := range []string{"ann", "ann", "bob"} { // to each a key of one's own
		ctx := metadata.AppendToOutgoingContext(context.Background(), client.MetadataKey, "key-1", "authorization", "bearer "+name)
		response, err := calls.Charge(ctx, &paymentsv1.ChargeRequest{})
		fmt.Println(name, response.GetCharge().GetId(), err)
	}
	_, err := calls.Charge(context.Background(), &paymentsv1.ChargeRequest{})
	fmt.Println(status.Code(err))
	// Output:
	// ann charge-1 <nil>
	// ann charge-1 <nil>
	// bob charge-2 <nil>
	// Unauthenticated
}

type customer struct{}

// authenticate takes a customer's name for a token; do not.
func authenticate(ctx context.Context) (context.Context, error) {
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		return nil, err
	}
	return context.WithValue(ctx, customer{}, token), nil
}

// A service that exists starts with observing: nothing is blocked, and the events tell what
// would have been. Once they are as expected, take Observe out.
func ExampleObserve() {
	s, stop := memory()
	defer stop()
	recorded := make(chan struct{}, 3)
	guard := client.NewGuard(s, client.NoOwner(), client.Observe(), client.OnEvent(func(e client.Event) {
		if e.Kind == client.EventRecorded {
			recorded <- struct{}{} // nobody waits for it, except this example
			return
		}
		fmt.Println("would have been:", e.Kind)
	}))
	p := &provider{}
	calls, stop := servePayments(grpc.NewServer(guard.ServerOptions()...), p)
	defer stop()
	ctx := metadata.AppendToOutgoingContext(context.Background(), client.MetadataKey, "order-1001")
	for i, cents := range []int64{4200, 4200, 4300} {
		_, err := calls.Charge(ctx, &paymentsv1.ChargeRequest{AmountCents: cents})
		fmt.Println(p.made, "charged", err)
		if i == 0 {
			<-recorded
		}
	}
	// Output:
	// would have been: granted
	// 1 charged <nil>
	// would have been: replayed
	// 2 charged <nil>
	// would have been: mismatch
	// 3 charged <nil>
}

// The provider's reply was lost. The repeat may run under the default lapse policy, and is
// told that an earlier attempt may have acted: the hook finds out, and the handler does not
// run.
func ExampleRecoverCall() {
	s, stop := memory()
	defer stop()
	const method = paymentsv1.PaymentsService_Charge_FullMethodName
	hook := client.RecoverCall(func(_ context.Context, req *paymentsv1.ChargeRequest, _ *client.Attempt) (*paymentsv1.ChargeResponse, bool, error) {
		fmt.Println("looking up order", req.GetOrderId())
		return receipt(1, req), true, nil
	})
	guard := client.NewGuard(s, client.NoOwner(), client.RecoverMethod(method, hook)) // the rest the .proto declares
	calls, stop := servePayments(grpc.NewServer(guard.ServerOptions()...), &provider{charge: func(context.Context, *paymentsv1.ChargeRequest) error {
		fmt.Println("charging")
		return status.Error(codes.Unavailable, "connection reset")
	}})
	defer stop()
	ctx := metadata.AppendToOutgoingContext(context.Background(), client.MetadataKey, "order-1001")
	for range 3 {
		response, err := calls.Charge(ctx, &paymentsv1.ChargeRequest{OrderId: "1001"})
		fmt.Println(response.GetCharge().GetId(), status.Code(err))
	}
	// Output:
	// charging
	//  Unavailable
	// looking up order 1001
	// charge-1 OK
	// charge-1 OK
}

// A call whose reply is lost is sent again under the key of its intent, and gets the answer
// of the first try.
func ExampleUnaryClientInterceptor() {
	s, stop := memory()
	defer stop()
	lost := errors.New("the connection broke")
	loseOne := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, req)
		if lost != nil {
			fmt.Println("charged, and the reply is lost")
			err, lost = status.Error(codes.Unavailable, lost.Error()), nil
			return nil, err
		}
		return response, err
	}
	options := append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(loseOne)},
		client.NewGuard(s, client.NoOwner()).ServerOptions()...)
	calls, stop := servePayments(grpc.NewServer(options...), &provider{}, grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor()))
	defer stop()

	// Kept with the order, so that it is the same if this process dies and another one goes on.
	key := client.Key("order-1001")
	response, err := calls.Charge(context.Background(), &paymentsv1.ChargeRequest{OrderId: "1001"}, key)
	fmt.Println(response.GetCharge().GetId(), err)
	// Output:
	// charged, and the reply is lost
	// charge-1 <nil>
}
