package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"

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
}

func newCaller(addr, account string) (*caller, error) {
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The first one sends a call again under the same key, if the service guards it. What
		// comes after it is the network.
		grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor(), loseReplies))
	if err != nil {
		return nil, err
	}
	return &caller{conn: conn, service: pb.NewPaymentsServiceClient(conn), account: account}, nil
}

func (c *caller) close() { _ = c.conn.Close() }

func (c *caller) context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, metadataAccount, c.account)
}

// charge asks for a charge. The key is the order: one intent, however often it is sent.
func (c *caller) charge(ctx context.Context, req *pb.ChargeRequest) answer {
	req.TraceId = rand.Text()
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

func runCaller(ctx context.Context, args []string, out io.Writer) error {
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
	if _, err := c.charges(ctx, scenes[0].order); err != nil {
		return fmt.Errorf("no payments service answers on %s; start one with: payments server: %w", *addr, err)
	}
	lines, err := play(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "what %s was charged, and how its calls were answered\n\n", *name)
	return printTable(out, lines)
}
