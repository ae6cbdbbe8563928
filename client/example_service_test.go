package client_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	paymentsv1 "github.com/idemd/idemd/proto/examples/payments/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

const drainTime = 10 * time.Second

// memory makes a store that forgets everything when it is closed, for examples.
func memory() (s store.Store, stop func()) {
	w := store.NewWaiter(storetest.NewMemory(store.SystemClock{}), store.WaiterOptions{})
	return w, w.Close
}

// provider charges whatever it is told to, as often as it is told to.
type provider struct {
	paymentsv1.UnimplementedPaymentsServiceServer
	charge func(context.Context, *paymentsv1.ChargeRequest) error // nil: it succeeds
	made   int
}

func (p *provider) Charge(ctx context.Context, req *paymentsv1.ChargeRequest) (*paymentsv1.ChargeResponse, error) {
	if p.charge != nil {
		if err := p.charge(ctx, req); err != nil {
			return nil, err
		}
	}
	p.made++
	return receipt(p.made, req), nil
}

func receipt(n int, req *paymentsv1.ChargeRequest) *paymentsv1.ChargeResponse {
	return &paymentsv1.ChargeResponse{Charge: &paymentsv1.Charge{
		Id: fmt.Sprint("charge-", n), OrderId: req.GetOrderId(), AmountCents: req.GetAmountCents(),
	}}
}

// servePayments makes p answer server's calls, on a free port until stop is called.
func servePayments(server *grpc.Server, p *provider, caller ...grpc.DialOption) (calls paymentsv1.PaymentsServiceClient, stop func()) {
	paymentsv1.RegisterPaymentsServiceServer(server, p)
	return serve(server, caller...)
}

func serve(server *grpc.Server, caller ...grpc.DialOption) (calls paymentsv1.PaymentsServiceClient, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	caller = append(caller, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(listener.Addr().String(), caller...)
	if err != nil {
		log.Fatal(err)
	}
	return paymentsv1.NewPaymentsServiceClient(conn), func() {
		if err := conn.Close(); err != nil {
			log.Fatal(err)
		}
		server.GracefulStop()
		if err := <-served; err != nil {
			log.Fatal(err)
		}
	}
}
