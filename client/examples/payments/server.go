package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/examples/payments/v1"
	"github.com/idemd/idemd/store"
)

const (
	idemdAddr    = "127.0.0.1:7600"
	paymentsAddr = "127.0.0.1:7700"
	// servesOn begins the line that says that the server is ready.
	servesOn = "payments serves on "
)

// guarding is how a server guards its calls.
type guarding struct {
	off     bool          // not at all
	observe bool          // blocks nothing, reports what it would have blocked
	recover bool          // looks at the provider after an attempt whose end is unknown
	hold    bool          // after such an attempt, waits for a person
	lease   time.Duration // zero: what the .proto declares
	report  func(client.Event)
}

func (g *guarding) flags(flags *flag.FlagSet) {
	flags.BoolVar(&g.off, "unguarded", false, "charge whenever called")
	flags.BoolVar(&g.observe, "observe", false, "block nothing, only count what the guard would have done")
	flags.BoolVar(&g.recover, "recover", true, "look at the provider whenever an earlier attempt may have charged")
	flags.BoolVar(&g.hold, "hold", false, "when an attempt may have charged, wait for a person")
	flags.DurationVar(&g.lease, "lease", 0, "how long a key is held without a renewal (default: what the .proto declares)")
}

// newServer makes the service's gRPC server, and its guard. With g.off there is no guard, and s is not used.
func newServer(s store.Store, p provider, g guarding) (*grpc.Server, *client.Guard, error) {
	service := &payments{provider: p, checks: g.recover}
	if g.off {
		server := grpc.NewServer()
		pb.RegisterPaymentsServiceServer(server, service)
		return server, nil, nil
	}
	opts := []client.GuardOption{client.Owner(account)} // the .proto says the rest
	if g.recover {
		opts = append(opts, client.RecoverMethod(charge, client.RecoverCall(service.findCharge)))
	}
	if g.lease != 0 || g.hold {
		opts = append(opts, client.Method(charge, policyOf(g)))
	}
	if g.observe {
		opts = append(opts, client.Observe())
	}
	if g.report != nil {
		opts = append(opts, client.OnEvent(g.report))
	}
	guard := client.NewGuard(s, opts...)
	server := grpc.NewServer(guard.ServerOptions()...)
	pb.RegisterPaymentsServiceServer(server, service)
	return server, guard, guard.Verify(server)
}

const charge = pb.PaymentsService_Charge_FullMethodName

// policyOf is what the .proto declares but for what the flags say: a policy that is given in
// code replaces the declared one as a whole.
func policyOf(g guarding) client.Policy {
	const declared = 10 * time.Second
	return client.Policy{
		Required: true, Lease: cmp.Or(g.lease, declared), Wait: declared, Hold: g.hold,
		FingerprintExclude: []string{"trace_id"},
	}
}

type serverFlags struct {
	guarding
	idemd, addr, ledger string
}

func (f *serverFlags) parse(args []string) error {
	flags := flag.NewFlagSet("payments server", flag.ContinueOnError)
	f.flags(flags)
	flags.StringVar(&f.idemd, "idemd", idemdAddr, "where idemd serves")
	flags.StringVar(&f.addr, "addr", paymentsAddr, "where to serve")
	flags.StringVar(&f.ledger, "ledger", "payments-ledger.jsonl", "the file that stands for the provider")
	return parse(flags, args)
}

func runServer(ctx context.Context, args []string, out, notes io.Writer) error {
	var f serverFlags
	if err := f.parse(args); err != nil {
		return err
	}
	l, err := openLedger(f.ledger)
	if err != nil {
		return err
	}
	defer l.close() //nolint:errcheck // each entry was synced
	return serve(ctx, l, f, out, notes)
}

// checkIdemd notes if idemd does not answer. The server starts all the same: idemd may be about to start, too.
func (f *serverFlags) checkIdemd(ctx context.Context, guard *client.Guard, notes io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := guard.Ready(ctx)
	if err == nil {
		return
	}
	means := "every charge is refused"
	if f.observe {
		means = "nothing is observed"
	}
	fmt.Fprintf(notes, "payments: idemd does not answer on %s, so %s until it does; start it with: go run ./cmd/idemd serve\n  (%v)\n", f.idemd, means, err)
}

// serve serves until ctx ends. Then calls finish first, and what they did is recorded before
// the connection to idemd goes.
func serve(ctx context.Context, p provider, f serverFlags, out, notes io.Writer) error {
	idemd, err := client.Dial(f.idemd)
	if err != nil {
		return err
	}
	defer idemd.Close()
	server, guard, err := newServer(idemd, p, f.guarding)
	if err != nil {
		return err
	}
	if guard != nil {
		f.checkIdemd(ctx, guard, notes)
	}
	listener, err := net.Listen("tcp", f.addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, server.GracefulStop)
	defer stop()
	fmt.Fprintf(out, "%s%s\n", servesOn, listener.Addr())
	err = server.Serve(listener)
	server.GracefulStop() // waits for the one that made Serve return
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, client.Drain(draining))
}
