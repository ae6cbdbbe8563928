package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/examples/payments/v1"
)

// A caller has its account charged.
type caller struct {
	conn    *grpc.ClientConn
	service pb.PaymentsServiceClient
	account string
	waits   func() // is called if a charge has no answer after longWait
}

const longWait = time.Second

func newCaller(addr, account string) (*caller, error) {
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The first one sends a call again under the same key, if the service guards it. What
		// comes after it is the network.
		grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor(), loseReplies))
	if err != nil {
		return nil, err
	}
	return &caller{conn: conn, service: pb.NewPaymentsServiceClient(conn), account: account, waits: func() {}}, nil
}

func (c *caller) close() { _ = c.conn.Close() }

func (c *caller) context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, metadataAccount, c.account)
}

// charge asks for a charge. The key is the order: one intent, however often it is sent.
func (c *caller) charge(ctx context.Context, req *pb.ChargeRequest) answer {
	req.TraceId = rand.Text()
	defer time.AfterFunc(longWait, c.waits).Stop()
	var header metadata.MD
	response, err := c.service.Charge(c.context(ctx), req, client.Key(req.GetOrderId()), grpc.Header(&header))
	return answer{response.GetCharge(), len(header.Get(client.MetadataReplayed)) > 0, err}
}

// chargeUntilReply asks again, as people do that were told of an error. Where the call is
// guarded there is no need to: it has been sent again already.
func (c *caller) chargeUntilReply(ctx context.Context, req *pb.ChargeRequest) []answer {
	var answers []answer
	for {
		a := c.charge(ctx, req)
		answers = append(answers, a)
		if status.Code(a.err) != codes.Unavailable || ctx.Err() != nil || len(answers) == maxTaps {
			return answers
		}
	}
}

const maxTaps = 5

// charges asks what was charged for an order.
func (c *caller) charges(ctx context.Context, order string) ([]*pb.Charge, error) {
	response, err := c.service.ListCharges(c.context(ctx), &pb.ListChargesRequest{OrderId: order})
	return response.GetCharges(), err
}

// An answer is what a caller got for a call.
type answer struct {
	charge *pb.Charge
	repeat bool // it is that of an earlier call
	err    error
}

func (a answer) String() string {
	text := a.charge.GetId()
	if a.err != nil {
		text = refusal(a.err)
	}
	if a.repeat {
		text += " (repeat)"
	}
	return text
}

// refusal is the reason that idemd gives for an error, or else the error's message.
func refusal(err error) string {
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return st.Message()
}

// loseReplies loses the reply of a call as often as its context says: what was asked for was
// done, and who asked does not know.
func loseReplies(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	left, ok := ctx.Value(repliesToLose{}).(*int)
	if !ok || *left == 0 {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	*left--
	_ = invoker(ctx, method, req, reply, cc) // without the options, which hand out what comes with a reply
	return status.Error(codes.Unavailable, "the connection broke before the reply came")
}

type repliesToLose struct{}

// losing returns a context for one call whose first replies are lost.
func losing(ctx context.Context, replies int) context.Context {
	return context.WithValue(ctx, repliesToLose{}, &replies)
}

// check asks whether the service can tell what was charged.
func (c *caller) check(ctx context.Context, addr string) error {
	const start = "go run ./client/examples/payments server"
	_, err := c.charges(ctx, scenes[0].order)
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unavailable:
		return fmt.Errorf("no payments service answers on %s; start one with: %s: %w", addr, start, err)
	case codes.Unimplemented:
		return fmt.Errorf("what answers on %s has no method ListCharges, by which this caller sees what was charged; a service that has it starts with: %s: %w", addr, start, err)
	default:
		return fmt.Errorf("asking the payments service on %s what was charged: %w", addr, err)
	}
}

func runCaller(ctx context.Context, args []string, out, notes io.Writer) error {
	flags := flag.NewFlagSet("payments caller", flag.ContinueOnError)
	addr := flags.String("addr", paymentsAddr, "where the payments service is")
	name := flags.String("account", "", "who calls (default: somebody new); the same again gets the same answers again")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *name == "" {
		*name = "account-" + rand.Text()[:6]
	}
	c, err := newCaller(*addr, *name)
	if err != nil {
		return err
	}
	defer c.close()
	c.waits = sync.OnceFunc(func() {
		fmt.Fprintf(notes, "payments: a charge has no answer after %v: the service may be asking an idemd that does not answer; start it with: go run ./cmd/idemd serve\n", longWait)
	})
	if err := c.check(ctx, *addr); err != nil {
		return err
	}
	lines, err := play(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "what %s was charged, and how its calls were answered\n\n", *name)
	return printTable(out, lines)
}
